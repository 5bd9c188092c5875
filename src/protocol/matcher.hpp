#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/outbox.hpp"

namespace guozhuang::protocol {

/// Where a point-to-point operation goes, seen from this rank.
struct Route {
    int peer = 0;
    std::uint16_t tag = 0;
    bool sending = true;
    auto operator<=>(const Route&) const = default;
};

/// How sends meet receives. Both sides announce each operation to the other; the k-th sending on a
/// route meets the k-th receiving, and if their tensors differ, both fail with the same error. When
/// a rank shuts down, its partners ask it for an answer, which by the order of messages comes after
/// all that it ever announced; what is unmatched then, fails. A pure state machine, one per rank
/// and process set; payloads are its caller's. Not thread-safe: the engine's lock guards it.
class Matcher {
public:
    /// Of an operation of this rank, counted as they are posted.
    using Number = std::uint64_t;
    /// An operation that waits for its peer no longer: its payload is to move, or it has failed.
    struct Decision {
        Number operation = 0;
        std::exception_ptr error;  ///< null: it has met its other half
    };

    /// `group_ranks`: whom errors name.
    Matcher(int rank, int size, GroupRanks group_ranks)
        : rank_(rank), size_(size), group_ranks_(std::move(group_ranks)) {}

    /// This rank sends or receives such a tensor.
    Number post(const Route& route, TensorDescription tensor);
    /// A message of take_messages() of another rank. Throws Error(wire) if it is malformed.
    void receive(int from, std::span<const std::byte> message);
    /// This rank quits without waiting for questions: answers everybody beforehand.
    void answer_all();
    /// A rank of the set submits nothing more; `text` says so.
    void shut_down(int rank, const std::string& text);
    /// The same of a rank that does not even serve what it has announced.
    void quit(int rank, const std::string& text);
    /// The job ends: what is unmatched never will be. A peer that has shut down has its own text.
    void fail_unmatched(const std::string& text);
    /// Forgets this rank's operations, which are the caller's to fail.
    void abandon() noexcept;

    std::vector<Outgoing> take_messages() { return std::exchange(outbox_, {}); }
    /// What has been decided since the last call, in order.
    std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }

private:
    enum class MessageType : std::uint8_t { announcement = 0, question = 1, answer = 2 };
    friend constexpr MessageType last_of(MessageType) noexcept { return MessageType::answer; }
    /// One of this rank's own.
    struct Operation {
        Number number = 0;
        TensorDescription tensor;
    };

    void send(int to, MessageType type);
    void announce(const Route& route, const TensorDescription& tensor);
    void receive_announcement(int from, Reader& in);
    void receive_answer(int from);
    void match(const Route& route);
    void fail_unmatched_with(int peer, const std::string& text);
    std::exception_ptr departed_error(const Route& route, const std::string& text) const;
    std::exception_ptr mismatch_error(const Route& route, const TensorDescription& mine,
                                      const TensorDescription& theirs) const;

    int rank_, size_;
    GroupRanks group_ranks_;
    Number last_posted_ = 0;
    std::map<Route, std::deque<Operation>> unmatched_;
    /// What the peers have announced, unmatched, under this rank's view of the route.
    std::map<Route, std::deque<TensorDescription>> announcements_;
    std::map<int, std::string> awaiting_answer_;  ///< asked, not yet answered
    std::set<int> early_answers_;                 ///< answered before they were asked
    std::map<int, std::string> shut_down_ranks_;  ///< answered: all they ever announced has arrived
    /// Those of awaiting_answer_ and shut_down_ranks_ that serve nothing any more.
    std::set<int> quit_ranks_;
    std::vector<Outgoing> outbox_;
    std::vector<Decision> decisions_;
};

}  // namespace guozhuang::protocol
