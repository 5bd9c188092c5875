#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/outbox.hpp"
#include "protocol/route.hpp"

namespace guozhuang::protocol {

/// Matches sends with receives. Both sides announce each operation to the other; the k-th send on a
/// route matches the k-th receive, and if their tensors differ, both fail with the same error. A
/// rank that shuts down announces that to every rank, itself included. Messages arrive in order, so
/// this comes after everything that the rank announced before, and operations with it that are
/// still unmatched fail. A pure state machine, one per rank and process set; its caller moves the
/// payloads. Not thread-safe: the engine's lock guards it.
class Matcher {
public:
    /// The number of this rank's operation, in posting order.
    using Number = std::uint64_t;
    /// An operation that no longer waits for its peer: its payload can move, or it has failed.
    struct Decision {
        Number operation = 0;
        std::exception_ptr error;  ///< null: it has been matched
    };

    /// `group_ranks`: for the names of ranks in errors.
    Matcher(int rank, int size, GroupRanks group_ranks)
        : rank_(rank), size_(size), group_ranks_(std::move(group_ranks)) {}

    /// This rank sends or receives a tensor with this description.
    Number post(const Route& route, TensorDescription tensor);
    /// Takes a message that take_messages() of another rank has returned. Throws Error(wire) if it
    /// is malformed.
    void receive(int from, std::span<const std::byte> message);
    /// This rank posts nothing more, for this reason. `at_once`: it quits, and drops even
    /// operations that it has announced. `culprit`: the world rank that is the cause; -1: itself.
    void shut_down(std::string_view reason, bool at_once, int culprit = -1);
    /// Whether all ranks have shut down, as far as this one has heard. Then nothing is unmatched.
    bool have_all_shut_down() const noexcept {
        return shutdowns_.size() == static_cast<std::size_t>(size_);
    }
    /// Forgets this rank's operations; the caller fails them.
    void abandon() noexcept;

    std::vector<Outgoing> take_messages() { return std::exchange(outbox_, {}); }
    /// Returns the decisions since the last call, in order.
    std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }

private:
    enum class MessageType : std::uint8_t { announcement = 0, shutdown = 1 };
    friend constexpr MessageType last_of(MessageType) noexcept { return MessageType::shutdown; }
    /// A send or receive of this rank.
    struct Operation {
        Number number = 0;
        TensorDescription tensor;
    };
    struct Shutdown {
        std::string text;  ///< says who has shut down, and why
        bool at_once = false;
        int culprit = -1;
    };

    void announce(const Route& route, const TensorDescription& tensor);
    void receive_announcement(int from, Reader& in);
    void receive_shutdown(int from, Reader& in);
    void match(const Route& route);
    void fail_unmatched_with(int peer);
    std::exception_ptr departed_error(const Route& route) const;
    std::exception_ptr mismatch_error(const Route& route, const TensorDescription& mine,
                                      const TensorDescription& theirs) const;

    int rank_, size_;
    GroupRanks group_ranks_;
    Number last_posted_ = 0;
    std::map<Route, std::deque<Operation>> unmatched_;
    /// Unmatched tensors that peers have announced, by the route as this rank sees it.
    std::map<Route, std::deque<TensorDescription>> announcements_;
    std::map<int, Shutdown> shutdowns_;  ///< by rank; everything that these announced has arrived
    std::vector<Outgoing> outbox_;
    std::vector<Decision> decisions_;
};

}  // namespace guozhuang::protocol
