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

#include "base/spin_backoff.hpp"

namespace guozhuang::base {

/// The ways in which a thread sleeps at its rank's doorbell, in the order in which rings wake them
/// (docs/threads.md, Who wakes whom).
enum class Sleepers : std::uint8_t {
    for_news,  ///< it waits for news from other ranks
    behind,    ///< it waits behind another thread of the rank, which drives
    idle,      ///< it has nothing to do
};

/// The word that a rank sleeps on and others ring. It lies in memory that the processes share (or
/// the threads, if ranks are threads), so the futex is not a private one. The rank's threads write
/// the first cache lines all the time. The others, which ranks read with each piece of news, are
/// hardly ever written while nobody sleeps.
struct alignas(128) Doorbell {
    enum class CauseState : std::uint32_t { none, being_written, complete };

    std::atomic<std::uint32_t> rings{0};  ///< counts; the futex word
    SpinBackoff backoff;                  ///< of the waits at this bell
    /// Bounds each sleep of a wait for news, while some may come without a ring.
    std::atomic<std::uint32_t> longest_sleep_us{~std::uint32_t{0}};

    /// How many threads sleep in each way, or will after their next look.
    alignas(128) std::array<std::atomic<std::uint32_t>, 3> counts{};
    std::atomic<std::uint32_t> abort{0};  ///< not 0: the job is over, every wait throws
    std::atomic<CauseState> cause_state{CauseState::none};
    std::int32_t culprit = -1;       ///< valid once the cause is complete, like code and text
    std::int32_t code = 0;           ///< an ErrorCode
    std::array<char, 2008> cause{};  ///< ends with a 0, or with the array

    std::atomic<std::uint32_t>& asleep(Sleepers way) noexcept {
        return counts[static_cast<std::size_t>(way)];
    }
};

/// Why a job ends: a text for users, and the rank that ends it (-1: unknown).
struct AbortCause {
    int rank = -1;
    std::string_view text = {};
    /// May also be rank_died, departed or timeout, whose texts name the rank themselves.
    ErrorCode code = ErrorCode::aborted;
};

/// The process sets whose waits a ring is for. A futex compares 32 bits: the world has its own two,
/// and the other sets share fifteen pairs. Sets that share a pair sometimes wake each other.
using Audience = std::uint32_t;
inline constexpr Audience everybody = ~Audience{0};
constexpr Audience audience_of(std::uint16_t context) noexcept {
    const int index = context == 0 ? 0 : 1 + (context - 1) % 15;
    return Audience{3} << (2 * index);
}

/// Wakes the threads that sleep in this way or an earlier one, and perhaps others, which go back to
/// sleep. Call it once the news is visible, on any thread of any process that has the doorbell
/// mapped. Costs a system call only if such a thread sleeps.
void ring(Doorbell& bell, Sleepers up_to = Sleepers::idle, Audience audience = everybody) noexcept;

/// Rings for_news only if a thread sleeps for news or is about to, so it costs nothing while the
/// other side is awake. Only for news that was stored before this call and that the other side
/// loads, both sequentially consistent.
void nudge(Doorbell& bell, Audience audience = everybody) noexcept;

/// Notes why the job is about to end. The first cause wins; a long text is cut.
void note_cause(Doorbell& bell, const AbortCause& cause) noexcept;
/// The same for all ranks of a host. If several ranks end the job at the same time, the cause in
/// the first bell goes to all bells, so every caller must list them in the same order.
void note_cause(std::span<Doorbell* const> bells, AbortCause cause) noexcept;

/// The cause, if there is one. Its text is valid as long as the bell lives.
std::optional<AbortCause> noted_cause(const Doorbell& bell) noexcept;

/// Notes the cause, sets the abort word and wakes all threads that sleep.
void abort(Doorbell& bell, const AbortCause& cause = {}) noexcept;

/// Whether the abort word is set.
bool is_aborted(const Doorbell& bell) noexcept;

/// The cause as a text for users.
std::string cause_of(const Doorbell& bell);
/// The code of the cause; aborted if none is known.
ErrorCode code_of(const Doorbell& bell) noexcept;

/// The rank that has died, if a death is the cause.
std::optional<int> culprit_of_death(const Doorbell& bell) noexcept;

/// Throws the cause, as far as it is known, as RankDied, Error(departed), Error(timeout) or
/// Error(aborted). Every wait at this bell does so once the abort word is set.
[[noreturn]] void throw_cause(const Doorbell& bell);

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
inline constexpr Deadline no_deadline = Deadline::max();

/// Thrown by a wait at its deadline.
struct DeadlinePassed : Error {
    DeadlinePassed() : Error(ErrorCode::timeout, "the wait outlived its deadline") {}
};

/// The time, up to a few milliseconds late: a tenth of the cost of Clock::now().
Clock::time_point coarse_now() noexcept;

/// The time this long from now; no_deadline if the clock cannot count that far.
template <class Duration>
Deadline deadline_after(Duration limit) {
    const auto now = Clock::now();
    return limit < std::chrono::duration_cast<Duration>(no_deadline - now) ? now + limit
                                                                           : no_deadline;
}

class TurnScheduler;

/// How a rank waits. `sleep_limit` bounds one sleep where news may come without a ring: from
/// another host, or by the progress of a transport.
struct WaitSettings {
    std::chrono::microseconds spin{50};  ///< 0: sleep after a few looks
    /// Whether a spinning thread yields its core between looks from the start, rather than after a
    /// while, because there are more ranks than cores. The same on all ranks of a host.
    bool yields = false;
    std::chrono::microseconds sleep_first{20};  ///< at least 1
    std::chrono::microseconds sleep_limit{1000};
    /// Bounds one sleep of a wait that has already slept 64 times as long.
    std::chrono::microseconds long_sleep_limit{0};
    /// The longest sleep of a rank with nothing to do; empty: until it is woken.
    std::optional<std::chrono::milliseconds> idle_limit = {};
    Audience audience = everybody;  ///< only rings for these wake it
    /// If not null, waits pass the turn on, and neither spin nor sleep.
    TurnScheduler* turn_scheduler = nullptr;
};

/// The same for a wait that nobody rings, because a device writes the news to memory.
inline WaitSettings settings_for_words(WaitSettings settings) {
    settings.sleep_limit = std::chrono::milliseconds(1);
    settings.long_sleep_limit = std::chrono::milliseconds(10);
    return settings;
}

/// The longest sleep while messages are in flight. Some transports advance a long message only
/// while both sides look for it (TCP, and MPI with copies through shared memory, if a process may
/// not read another's memory).
inline constexpr std::chrono::microseconds longest_sleep_for_messages{100};

/// One wait of one thread, from its first look to its success. It spins for a while, then sleeps at
/// the doorbell until it rings, and so on:
///
///     for (WaitLoop wait_loop(bell, settings); !look();) wait_loop.pause();
///
/// No ring between two calls of pause() is lost: the rings are counted before the look. Every call
/// throws the cause if the abort word is set, and DeadlinePassed some time after the deadline. Not
/// thread-safe: each waiting thread has its own.
class WaitLoop {
public:
    WaitLoop(Doorbell& bell, const WaitSettings& settings, Deadline deadline = no_deadline);
    ~WaitLoop();
    WaitLoop(const WaitLoop&) = delete;
    WaitLoop& operator=(const WaitLoop&) = delete;

    /// Call it after a look without success: spins one turn, or sleeps for_news, but no longer than
    /// `longest`.
    void pause(std::chrono::microseconds longest = std::chrono::microseconds::max());
    /// The same for another way to sleep. `behind` also spins first; `idle` sleeps at once, up to
    /// the idle limit.
    void pause(Sleepers way);
    /// Call it after a look that made progress without ending the wait: the spin starts again.
    void progressed();
    /// Whether the next pause() will sleep. A thread that drives releases the engine's lock before
    /// that.
    bool about_to_sleep() const noexcept { return counted_.has_value(); }
    /// Whether it sleeps because spins at this bell are suspended now.
    bool must_sleep() const noexcept { return about_to_sleep() && must_sleep_; }
    /// Sleeps for about that long; no ring ends it. For a thread that lets callers of its own rank
    /// go first, never to wait for news.
    void nap(std::chrono::microseconds length);

private:
    void spin(Sleepers way);
    void read_clock(Sleepers way);
    bool may_sleep(Sleepers way);
    void start_anew() noexcept;
    void count_in(std::optional<Sleepers> way) noexcept;
    bool fall_asleep(Audience woken_by,
                     Clock::time_point until);  ///< returns whether the bell rang meanwhile
    void check_abort() const;
    void check_deadline() const;

    Doorbell& bell_;
    WaitSettings settings_;
    Deadline deadline_;
    std::uint32_t seen_;  ///< rings that were counted before the last look
    Clock::time_point spin_until_{};
    std::chrono::microseconds next_sleep_;
    Clock::time_point asleep_since_{};     ///< valid while it is counted
    Clock::time_point last_clock_read_{};  ///< in this spin; the end of time before the first read
    unsigned turns_ = 0;
    bool yields_ = false;      ///< this spin yields its core between looks
    bool must_sleep_ = false;  ///< spinning was suspended at the start of this spin, or during it
    std::optional<Sleepers> counted_;  ///< how this thread is counted as asleep; empty: it spins
};

/// Waits until `ready()`: looks, spins, then sleeps between looks. `ready` may throw.
template <class Ready>
void wait_until(Doorbell& bell, const WaitSettings& settings, Ready&& ready) {
    WaitLoop wait_loop(bell, settings);
    while (!ready()) wait_loop.pause();
}

/// The same; returns false at the deadline, so that the caller says what it has waited for.
template <class Ready>
[[nodiscard]] bool wait_until(Doorbell& bell, const WaitSettings& settings, Ready&& ready,
                              Deadline deadline) try {
    WaitLoop wait_loop(bell, settings, deadline);
    while (!ready()) wait_loop.pause();
    return true;
} catch (const DeadlinePassed&) {
    return false;
}

/// Waits until one of the files is ready (see poll(2)); false if the limit passes first. For
/// threads that watch the system; ranks wait at doorbells.
bool wait_for_files(std::span<pollfd> files,
                    std::optional<std::chrono::milliseconds> limit = std::nullopt) noexcept;

}  // namespace guozhuang::base
