#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/control.hpp"
#include "engine/pending.hpp"
#include "protocol/codec.hpp"
#include "protocol/description.hpp"
#include "protocol/group_ranks.hpp"

namespace guozhuang::engine {

/// Where a point-to-point operation goes, seen from this rank.
struct Route {
    int peer = 0;
    std::uint16_t tag = 0;
    bool sending = true;
    auto operator<=>(const Route&) const = default;
};

/// One send or receive of this rank.
struct P2pOperation {
    Route route;
    std::shared_ptr<Pending> pending;
};

/// Send and receive. Both sides announce each operation to the other by a control message; the k-th
/// sending on a route meets the k-th receiving. If their tensors match, the payload moves, else
/// both fail with the same error. Nothing here waits: whoever drives the engine advances it. When a
/// rank shuts down, its partners ask it for an answer, which by the order of control messages comes
/// after all that it ever announced; what is unmatched then, fails. Not thread-safe: the engine's
/// lock guards it.
class PointToPoint {
public:
    struct Outcome {
        std::shared_ptr<Pending> pending;
        std::exception_ptr error;
    };
    struct Outgoing {
        int to = 0;
        protocol::Bytes bytes;
    };

    PointToPoint(Control& control, Mail& mail, protocol::GroupRanks group_ranks = {})
        : rank_(control.rank()),
          size_(control.size()),
          mail_(mail),
          group_ranks_(std::move(group_ranks)) {}

    void post(P2pOperation operation);
    void receive(int from, std::span<const std::byte> message);
    /// This rank quits without waiting for questions: answers everybody beforehand.
    void answer_all();
    /// A rank of the set submits nothing more; `text` says so.
    void shut_down(int rank, const std::string& text);
    /// The same of a rank that does not even serve what it has announced.
    void quit(int rank, const std::string& text);
    /// The job ends: what is unmatched never will be.
    void fail_unmatched(const std::string& text);

    /// The job is over: forgets all operations, payloads on their way too, which are the caller's
    /// to fail.
    void abandon() noexcept;

    /// Whether an operation of this rank waits for its peer or is on its way; whether one is on its
    /// way.
    bool has_operations() const noexcept;
    bool is_moving() const noexcept { return !moving_.empty(); }
    /// Whether this operation waits for its peer.
    bool is_unmatched(const Pending& operation) const;
    bool is_moving(const Pending& pending) const noexcept {
        return std::ranges::any_of(
            moving_, [&](const Moving& each) { return each.operation.pending.get() == &pending; });
    }

    /// Moves payloads forward; true if any came to its end.
    bool advance();
    std::vector<Outgoing> take_messages() { return std::exchange(outbox_, {}); }
    std::vector<Outcome> take_outcomes() { return std::exchange(outcomes_, {}); }

private:
    struct Moving {
        P2pOperation operation;
        Mail::Ticket ticket;
    };
    enum class RecordType : std::uint8_t { announcement = 0, question = 1, answer = 2 };
    friend constexpr RecordType last_of(RecordType) noexcept { return RecordType::answer; }

    void match(const Route& route);
    void begin(P2pOperation operation, const protocol::TensorDescription& theirs);
    std::exception_ptr departed_error(const Route& route, const std::string& text) const;
    void fail_unmatched_with(int peer, const std::string& text);
    std::exception_ptr mismatch(const P2pOperation& operation,
                                const protocol::TensorDescription& theirs) const;

    int rank_, size_;
    Mail& mail_;
    const protocol::GroupRanks group_ranks_;               ///< whom errors name
    std::map<Route, std::deque<P2pOperation>> unmatched_;  ///< those of this rank
    std::map<Route, std::deque<protocol::TensorDescription>>
        /// what the peers have announced, unmatched, under this rank's view of the route
        announcements_;
    std::vector<Moving> moving_;
    std::map<int, std::string> awaiting_answer_;  ///< asked, not yet answered
    std::set<int> early_answers_;                 ///< answered before they were asked
    std::map<int, std::string> shut_down_ranks_;  ///< answered: all they ever announced has arrived
    /// those of awaiting_answer_ and shut_down_ranks_ that serve nothing any more
    std::set<int> quit_ranks_;
    std::vector<Outgoing> outbox_;
    std::vector<Outcome> outcomes_;
};

}  // namespace guozhuang::engine
