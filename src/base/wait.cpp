#include "base/wait.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fmt/format.h>
#include <linux/futex.h>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/turn_scheduler.hpp"

namespace guozhuang::base {
namespace {

constexpr unsigned turns_between_clock_reads = 16;
/// One sleep of a long wait takes at most 1/64 of the time that the wait has slept so far.
constexpr int long_wait_for_each_sleep = 64;
/// News that takes longer may be that of a rank which needs this core.
constexpr auto soon = std::chrono::microseconds(5);
constexpr int looks_for_cause = 100;
constexpr auto between_looks = std::chrono::milliseconds(1);

// The two bits of an audience: a sleeper that waits for news from other ranks is woken by either,
// one that waits for local news only by the other.
constexpr Audience by_news = 0x5555'5555;
constexpr Audience by_local = ~by_news;

std::uint32_t* word(std::atomic<std::uint32_t>& value) noexcept {
    static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint32_t>::is_always_lock_free);
    return reinterpret_cast<std::uint32_t*>(&value);
}

void futex_wake(std::atomic<std::uint32_t>& value, Audience waker) noexcept {
    syscall(SYS_futex, word(value), FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, waker);
}

// The timeout is a point of CLOCK_MONOTONIC, which is what steady_clock reads.
void futex_wait(std::atomic<std::uint32_t>& value, std::uint32_t expected, Audience woken_by,
                Clock::time_point until) noexcept {
    const auto since = until.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    timespec timeout{};
    timeout.tv_sec = seconds.count();
    timeout.tv_nsec = std::chrono::nanoseconds(since - seconds).count();
    const bool bounded = until != Clock::time_point::max();
    syscall(SYS_futex, word(value), FUTEX_WAIT_BITSET, expected, bounded ? &timeout : nullptr,
            nullptr, woken_by);
}

/// A thread that has yielded its core to a busy thread of another program gets it back at a tick of
/// the system clock; one that has yielded it to another rank gets it back at that rank's next wait.
/// So a spin turn that takes half a tick reveals other programs.
Clock::duration late_turn() noexcept {
    static const Clock::duration half_a_tick = [] {
        timespec tick{};
        clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
        return (std::chrono::seconds(tick.tv_sec) + std::chrono::nanoseconds(tick.tv_nsec)) / 2;
    }();
    return half_a_tick;
}

void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// The cause is complete a moment after its writing began, unless the writer has died.
bool has_cause(const Doorbell& bell) noexcept {
    for (int look = 0;
         look < looks_for_cause && bell.cause_state == Doorbell::CauseState::being_written; ++look)
        wait_for_files({}, between_looks);
    return bell.cause_state.load(std::memory_order_acquire) == Doorbell::CauseState::complete;
}

std::string_view text_of(const Doorbell& bell) noexcept {
    return {bell.cause.data(), strnlen(bell.cause.data(), bell.cause.size())};
}

}  // namespace

// A thread that is about to sleep counts itself as asleep, then reads the rings a last time. This
// thread does the reverse, and all four operations are sequentially consistent, so either that
// thread sees the new count, or this one sees that it is asleep.
void ring(Doorbell& bell, Sleepers up_to, Audience audience) noexcept {
    bell.rings.fetch_add(1, std::memory_order_seq_cst);
    const auto any = [&](Sleepers way) {
        return way <= up_to && bell.asleep(way).load(std::memory_order_seq_cst) != 0;
    };
    if (any(Sleepers::behind) || any(Sleepers::idle))
        futex_wake(bell.rings, audience);
    else if (any(Sleepers::for_news))
        futex_wake(bell.rings, audience & by_news);
}

// As in ring(), with the news itself in the role of the count: a thread looks for the news once
// more after it has counted itself as asleep.
void nudge(Doorbell& bell, Audience audience) noexcept {
    if (bell.asleep(Sleepers::for_news).load(std::memory_order_seq_cst) != 0)
        ring(bell, Sleepers::for_news, audience);
}

void note_cause(Doorbell& bell, const AbortCause& cause) noexcept {
    auto none = Doorbell::CauseState::none;
    if (cause.rank < 0 ||
        !bell.cause_state.compare_exchange_strong(none, Doorbell::CauseState::being_written))
        return;
    bell.culprit = cause.rank;
    bell.code = static_cast<std::int32_t>(cause.code);
    cause.text.copy(bell.cause.data(), bell.cause.size());
    bell.cause_state.store(Doorbell::CauseState::complete, std::memory_order_release);
}

void note_cause(std::span<Doorbell* const> bells, AbortCause cause) noexcept {
    note_cause(*bells.front(), cause);
    cause = noted_cause(*bells.front()).value_or(cause);
    for (Doorbell* bell : bells.subspan(1)) note_cause(*bell, cause);
}

std::optional<AbortCause> noted_cause(const Doorbell& bell) noexcept {
    if (!has_cause(bell)) return std::nullopt;
    return AbortCause{.rank = bell.culprit, .text = text_of(bell), .code = code_of(bell)};
}

// If another rank is writing its cause, this does not wait for it: that rank may have died. The
// reader of the cause waits for it, for a while.
void abort(Doorbell& bell, const AbortCause& cause) noexcept {
    note_cause(bell, cause);
    bell.abort.store(1, std::memory_order_seq_cst);
    ring(bell);
}

bool is_aborted(const Doorbell& bell) noexcept {
    return bell.abort.load(std::memory_order_acquire) != 0;
}

std::string cause_of(const Doorbell& bell) {
    if (!has_cause(bell)) return "the job was aborted";
    if (code_of(bell) != ErrorCode::aborted) return std::string(text_of(bell));
    return fmt::format("rank {} has ended the job: {}", bell.culprit, text_of(bell));
}

/// Another process has written the code, so it is checked.
ErrorCode code_of(const Doorbell& bell) noexcept {
    const auto code = has_cause(bell) ? static_cast<ErrorCode>(bell.code) : ErrorCode::aborted;
    return code == ErrorCode::rank_died || code == ErrorCode::departed || code == ErrorCode::timeout
               ? code
               : ErrorCode::aborted;
}

std::optional<int> culprit_of_death(const Doorbell& bell) noexcept {
    if (!is_aborted(bell) || !has_cause(bell) || code_of(bell) != ErrorCode::rank_died)
        return std::nullopt;
    return bell.culprit;
}

void throw_cause(const Doorbell& bell) {
    if (!has_cause(bell)) throw Error(ErrorCode::aborted, cause_of(bell));
    const Error::Facts facts{.ranks = {bell.culprit}};
    const auto code = code_of(bell);
    if (code == ErrorCode::rank_died) throw RankDied(cause_of(bell), facts);
    throw Error(code, cause_of(bell), facts);
}

Clock::time_point coarse_now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return Clock::time_point(std::chrono::seconds(time.tv_sec) +
                             std::chrono::nanoseconds(time.tv_nsec));
}

WaitLoop::WaitLoop(Doorbell& bell, const WaitSettings& settings, Deadline deadline)
    : bell_(bell),
      settings_(settings),
      deadline_(deadline),
      seen_(bell.rings.load(std::memory_order_seq_cst)),
      next_sleep_(settings.sleep_first) {
    check_abort();
    check_deadline();
}

WaitLoop::~WaitLoop() {
    count_in(std::nullopt);
}

void WaitLoop::count_in(std::optional<Sleepers> way) noexcept {
    if (way == counted_) return;
    if (counted_) bell_.asleep(*counted_).fetch_sub(1, std::memory_order_seq_cst);
    if (way) bell_.asleep(*way).fetch_add(1, std::memory_order_seq_cst);
    counted_ = way;
}

void WaitLoop::check_abort() const {
    if (is_aborted(bell_)) throw_cause(bell_);
}

void WaitLoop::check_deadline() const {
    if (deadline_ != no_deadline && Clock::now() >= deadline_) throw DeadlinePassed();
}

void WaitLoop::pause(std::chrono::microseconds longest) {
    if (!may_sleep(Sleepers::for_news)) return;
    // News that a ring announces often needs several looks (the fragments of a long message), so
    // the spin starts again.
    const auto now = Clock::now();
    if (next_sleep_ == settings_.sleep_first) asleep_since_ = now;
    longest = std::min(longest, std::chrono::microseconds(bell_.longest_sleep_us));
    if (fall_asleep(settings_.audience, now + std::min(next_sleep_, longest))) return start_anew();
    const auto share = std::chrono::duration_cast<std::chrono::microseconds>(
        (now - asleep_since_) / long_wait_for_each_sleep);
    next_sleep_ = std::min(next_sleep_ * 2, std::max(settings_.sleep_limit,
                                                     std::min(share, settings_.long_sleep_limit)));
}

void WaitLoop::pause(Sleepers way) {
    if (way == Sleepers::for_news) return pause();
    if (!may_sleep(way)) return;
    auto until = Clock::time_point::max();
    if (way == Sleepers::behind)
        until = Clock::now() + settings_.sleep_limit;
    else if (settings_.idle_limit)
        until = Clock::now() + *settings_.idle_limit;
    fall_asleep(settings_.audience & by_local, until);
    if (way == Sleepers::idle) count_in(std::nullopt);
}

/// Whether this thread may sleep now: it is idle, or has counted itself as asleep and has looked
/// since. If not, spins one turn.
bool WaitLoop::may_sleep(Sleepers way) {
    if (settings_.turn_scheduler == nullptr) {
        if (way == Sleepers::idle) count_in(way);
        if (counted_ == way) return true;
        if (counted_) start_anew();  // the thread now waits in another way
        spin(way);
    } else {
        progressed();
    }
    return false;
}

void WaitLoop::start_anew() noexcept {
    turns_ = 0;
    count_in(std::nullopt);
    next_sleep_ = settings_.sleep_first;
}

void WaitLoop::spin(Sleepers way) {
    check_abort();
    if (turns_ == 0) must_sleep_ = bell_.backoff.is_active(coarse_now);
    if (must_sleep_) {
        count_in(way);
    } else {
        if (turns_ == 0) {
            yields_ = settings_.yields;
            last_clock_read_ = yields_ ? Clock::now() : no_deadline;
        }
        ++turns_;
        yields_ ? std::this_thread::yield() : relax();
        if (yields_ || turns_ % turns_between_clock_reads == 0) read_clock(way);
    }
    seen_ = bell_.rings.load(std::memory_order_seq_cst);
}

void WaitLoop::read_clock(Sleepers way) {
    const auto now = Clock::now();
    const auto turn = now - std::exchange(last_clock_read_, now);
    if (turn >= late_turn() && bell_.backoff.note_late(now, turn)) {
        must_sleep_ = true;
        count_in(way);
    }
    if (turns_ % turns_between_clock_reads != 0) return;
    check_deadline();
    if (turns_ == turns_between_clock_reads) spin_until_ = now + settings_.spin;
    if (now >= spin_until_) count_in(way);
    yields_ = yields_ || now >= spin_until_ - settings_.spin + soon;
}

void WaitLoop::progressed() {
    if (settings_.turn_scheduler != nullptr) settings_.turn_scheduler->yield_turn();
    check_abort();
    check_deadline();
    start_anew();
    seen_ = bell_.rings.load(std::memory_order_seq_cst);
}

void WaitLoop::nap(std::chrono::microseconds length) {
    if (settings_.turn_scheduler != nullptr) return progressed();
    std::atomic<std::uint32_t> nobody_rings{0};
    futex_wait(nobody_rings, 0, everybody, Clock::now() + length);
    check_abort();
}

bool WaitLoop::fall_asleep(Audience woken_by, Clock::time_point until) {
    if (bell_.rings.load(std::memory_order_seq_cst) == seen_)
        futex_wait(bell_.rings, seen_, woken_by, std::min(until, deadline_));
    const std::uint32_t before = std::exchange(seen_, bell_.rings.load(std::memory_order_seq_cst));
    check_abort();
    check_deadline();
    return seen_ != before;
}

bool wait_for_files(std::span<pollfd> files,
                    std::optional<std::chrono::milliseconds> limit) noexcept {
    const auto end = Clock::now() + limit.value_or(std::chrono::milliseconds(0));
    int found = -1;
    do {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
        found =
            poll(files.data(), files.size(),
                 limit ? static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0))
                       : -1);
    } while (found < 0 && errno == EINTR);
    return found > 0;
}

}  // namespace guozhuang::base
