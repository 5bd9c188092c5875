#include "base/spin_backoff.hpp"

#include <chrono>

#include "base/wait.hpp"
#include "support/runner/catch.hpp"

using namespace std::chrono_literals;
using namespace guozhuang::base;

namespace {

constexpr auto start = Clock::time_point(1h);

bool is_active(const SpinBackoff& backoff, Clock::time_point at) {
    return backoff.is_active([at] { return at; });
}

/// As if other programs had kept this rank from its core at that time.
void suspend_spins(Doorbell& bell, Clock::time_point until) {
    bell.backoff.note_late(until - 50s, 10s);
    REQUIRE(bell.backoff.note_late(until - 40s, 10s));
}

/// Longer than a tick of any system's clock.
constexpr auto late = 20ms;

/// Waits for nothing, with looks of which two are late, and on a busy machine more.
bool sleeps_after_late_looks(const WaitSettings& settings, int turns_between) {
    Doorbell bell;
    WaitLoop wait_loop(bell, settings);
    for (int looks = 0; looks < 2; ++looks) {
        for (int turn = 0; turn < turns_between; ++turn) wait_loop.pause();
        if (wait_loop.about_to_sleep()) return wait_loop.must_sleep();  // others' load was late
        wait_for_files({}, late);
    }
    for (int turn = 0; turn < turns_between; ++turn)
        if (!wait_loop.about_to_sleep()) wait_loop.pause();
    return wait_loop.must_sleep();
}

}  // namespace

TEST_CASE("one late turn suspends nothing, a second soon after does, for four times its length") {
    SpinBackoff backoff;
    CHECK_FALSE(is_active(backoff, start));
    CHECK_FALSE(backoff.note_late(start, 3ms));
    CHECK_FALSE(is_active(backoff, start));
    CHECK_FALSE(backoff.note_late(start + 13ms, 3ms));  // not soon enough
    CHECK(backoff.note_late(start + 25ms, 3ms));
    CHECK(is_active(backoff, start + 25ms + 12ms - 1us));
    CHECK_FALSE(is_active(backoff, start + 25ms + 12ms));
}

TEST_CASE("a suspension doubles while spins are late again, and is short again after good ones") {
    SpinBackoff backoff;
    auto now = start;
    backoff.note_late(now - 1ms, 1ms);
    for (const auto period : {4ms, 8ms, 16ms, 32ms, 64ms, 128ms, 256ms, 256ms}) {
        CHECK(backoff.note_late(now, 1ms));
        CHECK(is_active(backoff, now + period - 1us));
        CHECK_FALSE(is_active(backoff, now + period));
        now += period + 1ms;
    }
    now += 256ms;
    CHECK_FALSE(backoff.note_late(now, 1ms));
    CHECK(backoff.note_late(now + 1ms, 1ms));
    CHECK_FALSE(is_active(backoff, now + 5ms));
}

TEST_CASE("what holds up two threads of a rank at once is one late turn") {
    SpinBackoff backoff;
    CHECK_FALSE(backoff.note_late(start, 60s));
    CHECK_FALSE(backoff.note_late(start + 1ms, 60s));
    CHECK_FALSE(is_active(backoff, start - 4ms));  // as seen on a clock that is behind
    CHECK(backoff.note_late(start + 10ms, 3ms));
    CHECK(backoff.note_late(start + 11ms, 20ms));  // the same loss
    CHECK_FALSE(is_active(backoff, start + 10ms + 12ms));
}

TEST_CASE("a wait sleeps at once while spins are suspended, and spins again afterwards") {
    const WaitSettings settings{.spin = 100s, .yields = GENERATE(false, true)};
    Doorbell suspended, over;
    suspend_spins(suspended, Clock::now() + 1h);
    suspend_spins(over, Clock::now() - 1h);
    WaitLoop sleeping(suspended, settings), spinning(over, settings);
    for (WaitLoop* wait_loop : {&sleeping, &spinning}) wait_loop->pause();
    CHECK(sleeping.about_to_sleep());
    CHECK(sleeping.must_sleep());
    CHECK_FALSE(spinning.about_to_sleep());
}

TEST_CASE("a wait that has only spun long enough does not say that it must sleep") {
    Doorbell bell;
    WaitLoop wait_loop(bell, {.spin = 0us});
    while (!wait_loop.about_to_sleep()) wait_loop.pause();
    CHECK_FALSE(wait_loop.must_sleep());
}

TEST_CASE("late turns suspend the spins of a wait, whether it yields or not") {
    CHECK(sleeps_after_late_looks({.spin = 100s, .yields = true}, 1));
    CHECK(sleeps_after_late_looks({.spin = 100s, .yields = false}, 16));
}
