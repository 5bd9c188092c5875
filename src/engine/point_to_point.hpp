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
#include "protocol/members.hpp"

namespace guozhuang::engine {

/// Where a point-to-point operation goes, seen from this rank.
struct Route {
    int peer = 0;
    std::uint16_t tag = 0;
    bool sending = true;
    auto operator<=>(const Route&) const = default;
};

/// One send or receive of this rank.
struct Letter {
    Route route;
    std::shared_ptr<Pending> pending;
};

/// Send and receive. Both sides announce each letter to the other by a control message; the k-th
/// sending on a route meets the k-th receiving. If their tensors match, the payload moves, else
/// both fail with the same error. Nothing here waits: whoever drives the engine advances it. When a
/// rank departs, its partners ask it for an answer, which by the order of control messages comes
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

    PointToPoint(Control& control, Mail& mail, protocol::Members members = {})
        : rank_(control.rank()), size_(control.size()), mail_(mail), members_(std::move(members)) {}

    void post(Letter letter);
    void receive(int from, std::span<const std::byte> message);
    /// This rank leaves without waiting for questions: answers everybody beforehand.
    void say_goodbye();
    /// A rank of the set submits nothing more; `text` says so.
    void depart(int rank, const std::string& text);
    /// The same of a rank that does not even serve what it has announced.
    void leave(int rank, const std::string& text);
    /// The job ends: what is unmatched never will be.
    void fail_unmatched(const std::string& text);

    /// The job is over: forgets all letters, payloads on their way too, which are the caller's to
    /// fail.
    void abandon() noexcept;

    /// Whether a letter of this rank waits for its peer or is on its way; whether one is on its
    /// way.
    bool has_letters() const noexcept;
    bool is_moving() const noexcept { return !moving_.empty(); }
    /// Whether this letter waits for its peer.
    bool is_unmatched(const Pending& letter) const;
    bool is_moving(const Pending& pending) const noexcept {
        return std::ranges::any_of(
            moving_, [&](const Moving& each) { return each.letter.pending.get() == &pending; });
    }

    /// Moves payloads forward; true if any came to its end.
    bool advance();
    std::vector<Outgoing> take_messages() { return std::exchange(outbox_, {}); }
    std::vector<Outcome> take_outcomes() { return std::exchange(outcomes_, {}); }

private:
    struct Moving {
        Letter letter;
        Mail::Ticket ticket;
    };
    enum class Part : std::uint8_t { notice, question, answer };

    void match(const Route& route);
    void begin(Letter letter, const protocol::TensorDescription& theirs);
    std::exception_ptr departed_error(const Route& route, const std::string& text) const;
    void fail_unmatched_with(int peer, const std::string& text);
    std::exception_ptr mismatch(const Letter& letter,
                                const protocol::TensorDescription& theirs) const;

    int rank_, size_;
    Mail& mail_;
    const protocol::Members members_;              ///< whom errors name
    std::map<Route, std::deque<Letter>> letters_;  ///< unmatched ones of this rank
    std::map<Route, std::deque<protocol::TensorDescription>>
        /// what the peers have announced, unmatched, under this rank's view of the route
        notices_;
    std::vector<Moving> moving_;
    std::map<int, std::string> departing_;  ///< asked, not yet answered
    std::set<int> goodbyes_;                ///< answered before they were asked
    std::map<int, std::string> departed_;   ///< answered: all they ever announced has arrived
    /// those of departing_ and departed_ that serve nothing any more
    std::set<int> left_;
    std::vector<Outgoing> outbox_;
    std::vector<Outcome> outcomes_;
};

}  // namespace guozhuang::engine
