#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <string_view>

namespace guozhuang::base {

/// The word a rank parks on and others ring. Lives in memory that the ringing processes share (a
/// memfd, or plain memory between threads), so the futex is not a private one. What is used while
/// all is well is one cache line.
struct alignas(64) Doorbell {
    enum class CauseState : std::uint32_t { none, being_written, complete };

    std::atomic<std::uint32_t> rings{0};  ///< counts; the futex word
    /// How many threads that expect news are parked, or will be if their next look finds none.
    std::atomic<std::uint32_t> asleep{0};
    /// The same count of threads that wait while another thread of the rank hears the news.
    std::atomic<std::uint32_t> behind{0};
    std::atomic<std::uint32_t> abort{0};  ///< not 0: the job is over, every wait throws
    std::atomic<CauseState> cause_state{CauseState::none};
    std::int32_t culprit = -1;       ///< once the cause is complete, as are the code and the text
    std::int32_t code = 0;           ///< an ErrorCode
    std::array<char, 2024> cause{};  ///< ends with a 0, or with the array
};

/// Why a job ends, for people, and the rank that ends it (-1: unknown).
struct AbortCause {
    int rank = -1;
    std::string_view text = {};
    /// Else rank_died, departed or timeout, whose texts say themselves which rank they are about.
    ErrorCode code = ErrorCode::aborted;
};

/// Whose waits a ring is for: one process set's, or everybody's. A futex compares 32 bits: the
/// world has two of its own; the other sets share fifteen pairs, and now and then wake for each
/// other.
using Audience = std::uint32_t;
inline constexpr Audience everybody = ~Audience{0};
constexpr Audience audience_of(std::uint16_t context) noexcept {
    const int index = context == 0 ? 0 : 1 + (context - 1) % 15;
    return Audience{3} << (2 * index);
}

/// Says "there is news for you". Call it after the news is visible. Any thread of any process that
/// has the word mapped. A syscall only if a thread of the rank is parked and expects news.
void ring(Doorbell& bell, Audience audience = everybody) noexcept;

/// Rings only if a thread of the rank sleeps or is about to, so it costs nothing while the other
/// side is awake. For news whose look is a sequentially consistent load of what was stored,
/// sequentially consistent, before this call.
void nudge(Doorbell& bell, Audience audience = everybody) noexcept;

/// Like ring, and wakes also the threads of this rank that wait behind another: what it has driven
/// is done, or it drives no more.
void ring_callers(Doorbell& bell, Audience audience = everybody) noexcept;

/// Like ring, and wakes also those who expect nothing: for local news (a submission, a handle that
/// is done). A syscall only if somebody is parked.
void ring_local(Doorbell& bell, Audience audience = everybody) noexcept;

/// Notes why the job is about to end. The first cause wins; a text that is too long is cut.
void note_cause(Doorbell& bell, const AbortCause& cause) noexcept;
/// The same for all ranks of a host. If several ranks end the job at the same time, the cause that
/// the first bell has got holds for all: so every caller lists the bells in the same order.
void note_cause(std::span<Doorbell* const> bells, AbortCause cause) noexcept;

/// Notes the cause, sets the abort word and wakes everybody who is parked.
void abort(Doorbell& bell, const AbortCause& cause = {}) noexcept;

/// Whether the abort word is set.
bool is_aborted(const Doorbell& bell) noexcept;

/// Why it is set, for people.
std::string cause_of(const Doorbell& bell);
/// The code of the cause; aborted if none is known.
ErrorCode code_of(const Doorbell& bell) noexcept;

/// Who has died, if that is why.
std::optional<int> culprit_of_death(const Doorbell& bell) noexcept;

/// What every wait at this bell does once the abort word is set: throws the cause, as far as it is
/// known, as RankDied, Error(departed), Error(timeout) or Error(aborted).
[[noreturn]] void throw_cause(const Doorbell& bell);

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
inline constexpr Deadline no_deadline = Deadline::max();

/// What a wait throws past its deadline.
struct DeadlinePassed : Error {
    DeadlinePassed() : Error(ErrorCode::timeout, "the wait outlived its deadline") {}
};

/// Now, or a few milliseconds ago: costs a tenth of looking at the clock.
Clock::time_point coarse_now() noexcept;

/// From now; none, if that is beyond what the clock can count.
template <class Duration>
Deadline deadline_after(Duration limit) {
    const auto now = Clock::now();
    return limit < std::chrono::duration_cast<Duration>(no_deadline - now) ? now + limit
                                                                           : no_deadline;
}

class TurnScheduler;

/// How a rank waits. `park_limit` bounds one sleep where news may come without a ring (from another
/// host, or by a transport's own progress).
struct WaitSettings {
    std::chrono::microseconds spin{50};  ///< 0: park after a few looks
    /// There are more ranks than cores: between looks the core is left to others. The same on all
    /// ranks of a host.
    bool yields = false;
    std::chrono::microseconds park_first{20};  ///< at least 1
    std::chrono::microseconds park_limit{1000};
    /// The park_limit of a rank with nothing to do; empty: it sleeps until it is woken.
    std::optional<std::chrono::milliseconds> idle_limit = {};
    Audience audience = everybody;  ///< only rings for these wake it
    /// If there is one, a wait passes the turn on and neither spins nor parks.
    TurnScheduler* turn_scheduler = nullptr;
};

/// One wait of one thread, from its first look to its success: spins for a while, then parks on the
/// doorbell until it rings, and so on.
///
///     for (WaitLoop wait_loop(bell, settings); !look();) wait_loop.pause();
///
/// A ring between two calls of pause() is never lost: the count of rings is read before the look.
/// Every call throws the cause when the abort word is set and, sooner or later, DeadlinePassed past
/// the deadline. Not thread-safe: one per waiting thread.
class WaitLoop {
public:
    WaitLoop(Doorbell& bell, const WaitSettings& settings, Deadline deadline = no_deadline);
    ~WaitLoop();
    WaitLoop(const WaitLoop&) = delete;
    WaitLoop& operator=(const WaitLoop&) = delete;

    /// Nothing to do at this look: spin one turn, or park.
    void pause();
    /// The same while another thread of this rank drives: news from other ranks, which that one
    /// hears, no longer wake this one once it is parked. ring_callers(), ring_local() and abort()
    /// do.
    void pause_behind();
    /// The look made progress without ending the wait: spin anew, and look again before parking.
    void progressed();
    /// Whether the next pause() will park: a driver gives up its role (and its lock) before that.
    /// The answer holds until then.
    bool about_to_park() const noexcept { return counted_ != nullptr; }
    /// Parks up to the idle limit and without asking to be woken by rings from others: for a
    /// coordinator with nothing pending. ring_local() and abort() still wake it.
    void park_idle();

private:
    using Sleepers = std::atomic<std::uint32_t>;

    void spin(Sleepers& sleepers);
    bool may_park(Sleepers& sleepers);
    void start_anew() noexcept;
    void count_in(Sleepers* sleepers) noexcept;
    bool park(Audience woken_by, Clock::time_point until);  ///< whether the bell rang meanwhile
    void check_abort() const;
    void check_deadline() const;

    Doorbell& bell_;
    WaitSettings settings_;
    Deadline deadline_;
    std::uint32_t seen_;  ///< rings before the look that follows
    Clock::time_point spin_until_{};
    std::chrono::microseconds next_park_;
    unsigned turns_ = 0;
    Sleepers* counted_ = nullptr;  ///< among whom, if it will park at the next pause
};

/// Waits until `ready()`; between looks it spins, then parks. `ready` may throw.
template <class Ready>
void wait_until(Doorbell& bell, const WaitSettings& settings, Ready&& ready,
                Deadline deadline = no_deadline) {
    WaitLoop wait_loop(bell, settings, deadline);
    while (!ready()) wait_loop.pause();
}

/// Waits until one of the files has news (see poll(2)); false if the limit came first. For threads
/// that watch the system: ranks wait at doorbells.
bool wait_for_files(std::span<pollfd> files,
                    std::optional<std::chrono::milliseconds> limit = std::nullopt) noexcept;

}  // namespace guozhuang::base
