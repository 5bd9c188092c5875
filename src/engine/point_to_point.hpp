#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/codec.hpp"
#include "engine/control.hpp"
#include "engine/description.hpp"
#include "engine/members.hpp"
#include "engine/pending.hpp"

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
    std::uint64_t number = 0;  ///< among all of this rank
};

/// Send and receive. Both sides announce each letter to the other by a control message; the k-th sending on a route meets the k-th receiving.
/// If their tensors match, the payload moves, else both fail with the same error. Nothing here waits: whoever drives the engine advances it.
/// A rank gives a letter up by asking its peer to: if the peer has its own of the pair already, it has announced that before it hears of it, so they
/// meet; else it says that it agrees, and its own of the pair will fail when it is posted.
/// When a rank departs, its partners ask it for an answer, which by the order of control messages comes after all that it ever announced; what
/// is unmatched then, fails. Not thread-safe: the engine's lock guards it.
class PointToPoint {
public:
    struct Outcome {
        std::shared_ptr<Pending> pending;
        std::exception_ptr error;
    };
    struct Outgoing {
        int to = 0;
        Bytes bytes;
        bool urgent = false;  ///< also for a rank that waits for nothing
    };

    PointToPoint(Control& control, Mail& mail, Members members = {})
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
    /// A letter that has waited too long, if it is still unmatched: fails with Error(timeout) and this text, on both sides, unless the peer comes first.
    void give_up(const Pending& pending, std::string_view text);

    /// The job is over: forgets all letters, payloads on their way too, which are the caller's to fail.
    void abandon() noexcept;

    /// Whether a letter of this rank waits for its peer or is on its way; whether one is on its way.
    bool has_letters() const noexcept;
    bool is_moving() const noexcept { return !moving_.empty(); }
    bool is_moving(const Pending& pending) const noexcept {
        return std::ranges::any_of(moving_, [&](const Moving& each) { return each.letter.pending.get() == &pending; });
    }

    /// Moves payloads forward; true if any came to its end.
    bool advance();
    std::vector<Outgoing> take_messages() { return std::exchange(outbox_, {}); }
    std::vector<Outcome> take_outcomes() { return std::exchange(outcomes_, {}); }

private:
    /// What a side announces of a letter.
    struct Notice {
        std::uint64_t number = 0;
        TensorDescription tensor;
        std::optional<std::string> given_up = {};  ///< why
    };
    struct Moving {
        Letter letter;
        Mail::Ticket ticket;
    };
    enum class Part : std::uint8_t { notice, question, answer, give_up, given_up };

    void match(const Route& route);
    void begin(Letter letter, const Notice& theirs);
    void agree_to_give_up(const Route& route, std::uint64_t number, const std::string& text);
    void end_given_up(const Route& route, std::uint64_t number, const std::string& text);
    std::exception_ptr timeout_error(const Route& route, int missing, const std::string& text) const;
    std::exception_ptr departed_error(const Route& route, const std::string& text) const;
    void fail_unmatched_with(int peer, const std::string& text);
    std::exception_ptr mismatch(const Letter& letter, const TensorDescription& theirs) const;

    int rank_, size_;
    Mail& mail_;
    const Members members_;  ///< whom errors name
    std::uint64_t posted_ = 0;
    std::map<Route, std::deque<Letter>> letters_;  ///< unmatched ones of this rank; without an operation if it has been given up
    std::map<Route, std::deque<Notice>> notices_;  ///< unmatched ones of the peers, under this rank's view of the route
    std::vector<Moving> moving_;
    std::map<int, std::string> departing_;  ///< asked, not yet answered
    std::set<int> goodbyes_;                ///< answered before they were asked
    std::map<int, std::string> departed_;   ///< answered: all they ever announced has arrived
    std::set<int> left_;                    ///< those of departing_ and departed_ that serve nothing any more
    std::vector<Outgoing> outbox_;
    std::vector<Outcome> outcomes_;
};

}  // namespace guozhuang::engine
