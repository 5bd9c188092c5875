#include "base/wait.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <fstream>
#include <guozhuang/error.hpp>
#include <optional>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "support/runner/catch.hpp"

using namespace std::chrono_literals;
using guozhuang::Error;
using guozhuang::ErrorCode;
using guozhuang::RankDied;
using namespace guozhuang::base;

namespace {

/// Sleeps for so long that a wake-up that is lost becomes a timeout of the wait.
constexpr WaitSettings sleep_for_long{.spin = 0us, .sleep_first = 60s, .sleep_limit = 60s};

Deadline after(Clock::duration time) {
    return Clock::now() + time;
}

/// The error that `wait` ends with; empty if it ends well.
template <class Wait>
std::optional<ErrorCode> error_of(Wait&& wait) {
    try {
        wait();
    } catch (const Error& error) {
        return error.code();
    }
    return std::nullopt;
}

/// Restricts the calling thread to the first core that it may use: then it never sees its partner
/// run while it spins, and sleeps every time.
void stay_on_one_core() {
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &allowed)) ++cpu;
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

struct Player {
    Doorbell bell;
    std::atomic<int> ball{0};  ///< the number of the last throw to this player
};

/// Throws at the deadline.
template <class Ready>
void wait_in_time(Doorbell& bell, const WaitSettings& settings, Ready&& ready, Deadline deadline) {
    if (!wait_until(bell, settings, ready, deadline))
        throw Error(ErrorCode::timeout, "the wait outlived its deadline");
}

/// Throws back what arrives, `rounds` times. Its wait fails with timeout if a ring is lost.
std::optional<ErrorCode> play(Player& self, Player& other, int rounds, bool starts) {
    return error_of([&] {
        for (int round = 1; round <= rounds; ++round) {
            if (starts) {
                other.ball.store(round);
                ring(other.bell, Sleepers::for_news);
            }
            wait_in_time(
                self.bell, sleep_for_long, [&] { return self.ball.load() >= round; }, after(20s));
            if (!starts) {
                other.ball.store(round);
                ring(other.bell, Sleepers::for_news);
            }
        }
    });
}

void check_that_no_ring_is_lost(int rounds, bool on_one_core) {
    Player left, right;
    std::optional<ErrorCode> left_error, right_error;
    std::thread first([&] {
        if (on_one_core) stay_on_one_core();
        left_error = play(left, right, rounds, true);
    });
    std::thread second([&] {
        if (on_one_core) stay_on_one_core();
        right_error = play(right, left, rounds, false);
    });
    first.join();
    second.join();
    CHECK_FALSE(left_error.has_value());
    CHECK_FALSE(right_error.has_value());
}

void until_asleep(Doorbell& bell) {
    while (bell.asleep(Sleepers::for_news).load() == 0) std::this_thread::yield();
}

/// Whether the kernel has put a thread of this process to sleep, and nobody has woken it since.
bool sleeps(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string number, name, state;
    return file >> number >> name >> state && state == "S";
}

}  // namespace

TEST_CASE("no ring is lost between two threads that sleep every time") {
    check_that_no_ring_is_lost(100'000, true);
}

TEST_CASE("no ring is lost between two threads that race to sleep") {
    check_that_no_ring_is_lost(30'000, false);
}

TEST_CASE("a thread that gives up leaves the others on the same bell to be woken") {
    Doorbell bell;
    std::atomic<bool> ready{false};
    std::optional<ErrorCode> patient, hasty;
    std::thread first([&] {
        patient = error_of([&] {
            wait_in_time(
                bell, sleep_for_long, [&] { return ready.load(); }, after(10s));
        });
    });
    until_asleep(bell);
    hasty = error_of([&] {
        wait_in_time(
            bell, sleep_for_long, [] { return false; }, after(5ms));
    });
    ready = true;
    ring(bell, Sleepers::for_news);
    first.join();
    CHECK(hasty == ErrorCode::timeout);
    CHECK_FALSE(patient.has_value());
    CHECK(bell.asleep(Sleepers::for_news).load() == 0);
}

TEST_CASE("a nudge rings for a sleeper only, and never too late") {
    Doorbell bell;
    nudge(bell);
    CHECK(bell.rings.load() == 0);
    std::atomic<int> staged{0};
    std::atomic<bool> in_time{true};
    const int rounds = 20'000;
    std::thread waiting([&] {
        for (int round = 1; round <= rounds; ++round) {
            const auto error = error_of([&] {
                wait_in_time(
                    bell, {.spin = 0us, .sleep_first = 60s, .sleep_limit = 60s},
                    [&] { return staged.load() >= round; }, after(20s));
            });
            if (error) in_time = false;
            staged = -round;  // taken
        }
    });
    for (int round = 1; round <= rounds; ++round) {
        while (staged.load() != 1 - round) std::this_thread::yield();
        if (round % 2 == 0)
            for (int i = 0; i < 50 && bell.asleep(Sleepers::for_news).load() == 0; ++i)
                std::this_thread::yield();
        staged = round;
        nudge(bell);
    }
    waiting.join();
    CHECK(in_time);
    CHECK(bell.asleep(Sleepers::for_news).load() == 0);
}

TEST_CASE("a wait ends at its deadline, asleep or spinning") {
    Doorbell bell;
    const auto spin = GENERATE(0us, std::chrono::microseconds(10s));
    const WaitSettings settings{.spin = spin, .sleep_first = 60s, .sleep_limit = 60s};
    const auto code = error_of([&] {
        wait_in_time(
            bell, settings, [] { return false; }, after(5ms));
    });
    CHECK(code == ErrorCode::timeout);
}

TEST_CASE("abort wakes whoever sleeps, and ends every later wait") {
    Doorbell bell;
    std::optional<ErrorCode> waiting, idle;
    std::thread waiter([&] {
        waiting = error_of([&] {
            wait_in_time(
                bell, sleep_for_long, [] { return false; }, after(10s));
        });
    });
    std::thread sleeper([&] {
        idle = error_of([&] { WaitLoop(bell, sleep_for_long, after(10s)).pause(Sleepers::idle); });
    });
    until_asleep(bell);
    abort(bell);
    waiter.join();
    sleeper.join();
    CHECK(waiting == ErrorCode::aborted);
    CHECK(idle == ErrorCode::aborted);
    CHECK(error_of([&] { wait_until(bell, sleep_for_long, [] { return true; }); }) ==
          ErrorCode::aborted);
}

TEST_CASE("an aborted wait says who ended the job and why, in the words of the first") {
    const auto words_of = [](Doorbell& bell) -> std::string {
        try {
            WaitLoop wait_loop(bell, sleep_for_long);
        } catch (const Error& error) {
            return error.what() +
                   (error.ranks().empty() ? "" : " " + std::to_string(error.ranks().front()));
        }
        return {};
    };
    Doorbell bell, nameless, wordy;
    CHECK(words_of(bell).empty());
    abort(bell, {.rank = 3, .text = "no memory"});
    abort(bell, {.rank = 4, .text = "another reason"});
    CHECK(words_of(bell) == "rank 3 has ended the job: no memory 3");
    abort(nameless);
    CHECK(words_of(nameless) == "the job was aborted");
    abort(wordy, {.rank = 0, .text = std::string(10'000, 'x')});
    CHECK(words_of(wordy) ==
          "rank 0 has ended the job: " + std::string(wordy.cause.size(), 'x') + " 0");
}

TEST_CASE("a wait that ends by a death or a shutdown throws that, in words of their own") {
    Doorbell dead, left, spoilt;
    abort(dead, {.rank = 2, .text = "rank 2 died", .code = ErrorCode::rank_died});
    abort(left, {.rank = 1, .text = "rank 1 has shut down", .code = ErrorCode::departed});
    try {
        WaitLoop wait_loop(dead, sleep_for_long);
    } catch (const RankDied& error) {
        CHECK(error.rank() == 2);
        CHECK(error.code() == ErrorCode::rank_died);
        CHECK(std::string(error.what()) == "rank 2 died");
    }
    CHECK(error_of([&] { WaitLoop(dead, sleep_for_long); }) == ErrorCode::rank_died);
    CHECK(error_of([&] { WaitLoop(left, sleep_for_long); }) == ErrorCode::departed);
    CHECK(cause_of(left) == "rank 1 has shut down");
    abort(spoilt, {.rank = 1, .text = "anything", .code = ErrorCode::invalid_argument});
    CHECK(error_of([&] { WaitLoop(spoilt, sleep_for_long); }) == ErrorCode::aborted);
}

TEST_CASE(
    "a cause that is being written while somebody else aborts is waited for, but not for ever") {
    Doorbell slow, never;
    for (Doorbell* bell : {&slow, &never}) {
        bell->cause_state = Doorbell::CauseState::being_written;
        abort(*bell, {.rank = 1, .text = "the second to come"});
    }
    std::thread writer([&] {
        wait_for_files({}, 20ms);
        slow.culprit = 0;
        std::ranges::copy("the first", slow.cause.begin());
        slow.cause_state = Doorbell::CauseState::complete;
    });
    CHECK(cause_of(slow) == "rank 0 has ended the job: the first");
    writer.join();
    CHECK(error_of([&] { throw_cause(never); }) == ErrorCode::aborted);
}

TEST_CASE("waiting for files ends with their news or at the limit") {
    CHECK_FALSE(wait_for_files({}, 1ms));
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pollfd file{ends[0], POLLIN, 0};
    CHECK_FALSE(wait_for_files({&file, 1}, 0ms));
    REQUIRE(write(ends[1], "x", 1) == 1);
    CHECK(wait_for_files({&file, 1}));
    CHECK(file.revents == POLLIN);
    close(ends[0]);
    close(ends[1]);
}

TEST_CASE("a wait that makes progress all the time still ends by abort and at its deadline") {
    Doorbell bell;
    const auto endless = [&](Deadline deadline) {
        WaitLoop wait_loop(bell, sleep_for_long, deadline);
        while (true) wait_loop.progressed();
    };
    CHECK(error_of([&] { endless(after(2ms)); }) == ErrorCode::timeout);
    std::thread other([&] { abort(bell); });
    CHECK(error_of([&] { endless(no_deadline); }) == ErrorCode::aborted);
    other.join();
}

TEST_CASE("a bell bounds the sleeps at it while news may come without a ring") {
    Doorbell bell;
    bell.longest_sleep_us = 1000;
    std::atomic<bool> news{false};
    std::thread other([&] {
        wait_for_files({}, 20ms);
        news = true;  // and does not ring
    });
    const WaitSettings settings{.spin = 0us, .sleep_first = 1h, .sleep_limit = 1h};
    wait_until(bell, settings, [&] { return news.load(); });
    other.join();
    CHECK(news);
}

TEST_CASE("an idle thread wakes for local news") {
    Doorbell bell;
    std::atomic<bool> news{false};
    std::optional<ErrorCode> code;
    std::thread sleeper([&] {
        code = error_of([&] {
            WaitLoop wait_loop(bell, sleep_for_long, after(10s));
            while (!news.load()) wait_loop.pause(Sleepers::idle);
        });
    });
    news = true;
    ring(bell);
    sleeper.join();
    CHECK_FALSE(code.has_value());
}

TEST_CASE("every process set has an audience, and the world one of its own") {
    Audience all = audience_of(0);
    for (int context = 1; context <= 0xfff; ++context) {
        const auto audience = audience_of(static_cast<std::uint16_t>(context));
        CHECK((audience & audience_of(0)) == 0);
        CHECK(std::popcount(audience) == 2);
        all |= audience;
    }
    CHECK(all == everybody);
}

TEST_CASE("a ring for one process set wakes nobody of another") {
    const bool idle = GENERATE(true, false);
    const Audience rung_last = GENERATE(audience_of(2), everybody);
    Doorbell bell;
    std::atomic<pid_t> thread{0};
    std::optional<ErrorCode> code;
    std::thread sleeper([&] {
        auto settings = sleep_for_long;
        settings.audience = audience_of(2);
        code = error_of([&] {
            WaitLoop wait_loop(bell, settings, after(20s));
            while (!idle && !wait_loop.about_to_sleep()) wait_loop.pause();
            thread = gettid();
            idle ? wait_loop.pause(Sleepers::idle) : wait_loop.pause();
        });
    });
    while (thread == 0 || !sleeps(thread)) std::this_thread::yield();
    for (const auto context : std::initializer_list<std::uint16_t>{0, 1, 3}) {
        ring(bell, Sleepers::idle, audience_of(context));
        ring(bell, Sleepers::for_news, audience_of(context));
        nudge(bell, audience_of(context));
    }
    CHECK(sleeps(thread));
    ring(bell, Sleepers::idle, rung_last);
    sleeper.join();
    CHECK_FALSE(code.has_value());
}

TEST_CASE("a thread that waits behind another is woken when that one rings for it, not by news") {
    Doorbell bell;
    std::atomic<pid_t> thread{0};
    std::atomic<bool> ended{false};
    std::optional<ErrorCode> code;
    std::thread caller([&] {
        code = error_of([&] {
            WaitLoop wait_loop(bell, sleep_for_long, after(20s));
            while (!wait_loop.about_to_sleep()) wait_loop.pause(Sleepers::behind);
            thread = gettid();
            while (!ended) wait_loop.pause(Sleepers::behind);
        });
    });
    while (thread == 0 || !sleeps(thread)) std::this_thread::yield();
    CHECK(bell.asleep(Sleepers::for_news).load() == 0);
    nudge(bell);
    ring(bell, Sleepers::for_news);
    CHECK(sleeps(thread));
    ended = true;
    ring(bell, Sleepers::behind);
    caller.join();
    CHECK_FALSE(code.has_value());
    CHECK(bell.asleep(Sleepers::behind).load() == 0);
}

TEST_CASE("a thread that drove before waits behind another all the same, and the other way round") {
    Doorbell bell;
    {
        WaitLoop wait_loop(bell, {.spin = 0us, .sleep_first = 1us, .sleep_limit = 1us});
        while (!wait_loop.about_to_sleep()) wait_loop.pause();
        CHECK(bell.asleep(Sleepers::for_news).load() == 1);
        do wait_loop.pause(Sleepers::behind);
        while (!wait_loop.about_to_sleep());
        CHECK(bell.asleep(Sleepers::for_news).load() == 0);
        CHECK(bell.asleep(Sleepers::behind).load() == 1);
        do wait_loop.pause();
        while (!wait_loop.about_to_sleep());
        CHECK(bell.asleep(Sleepers::for_news).load() == 1);
        CHECK(bell.asleep(Sleepers::behind).load() == 0);
    }
    CHECK(bell.asleep(Sleepers::for_news).load() == 0);
}

TEST_CASE("no end is lost on a thread that waits behind another") {
    Doorbell bell;
    std::atomic<int> ended{0};
    std::optional<ErrorCode> code;
    const int rounds = 20'000;
    std::thread caller([&] {
        code = error_of([&] {
            for (int round = 1; round <= rounds; ++round) {
                WaitLoop wait_loop(bell, sleep_for_long, after(20s));
                while (ended.load() != round) wait_loop.pause(Sleepers::behind);
                ended = -round;  // taken
            }
        });
    });
    for (int round = 1; round <= rounds; ++round) {
        while (ended.load() != 1 - round) std::this_thread::yield();
        if (round % 2 == 0)
            for (int i = 0; i < 50 && bell.asleep(Sleepers::behind).load() == 0; ++i)
                std::this_thread::yield();
        ended = round;
        ring(bell, Sleepers::behind);
    }
    caller.join();
    CHECK_FALSE(code.has_value());
}

TEST_CASE("a spin soon lets whoever needs this core have it") {
    constexpr int rounds = 50;
    Doorbell left_bell, right_bell;
    std::atomic<int> ball{0};
    std::vector<int> looks(rounds);
    const WaitSettings spin_for_long{.spin = 10s};
    std::thread left([&] {
        stay_on_one_core();
        for (int round = 0; round < rounds; ++round) {
            ball = 2 * round + 1;
            ring(right_bell, Sleepers::for_news);
            wait_until(left_bell, spin_for_long, [&] {
                ++looks[static_cast<std::size_t>(round)];
                return ball == 2 * round + 2;
            });
        }
    });
    std::thread right([&] {
        stay_on_one_core();
        for (int round = 0; round < rounds; ++round) {
            wait_until(right_bell, spin_for_long, [&] { return ball == 2 * round + 1; });
            ball = 2 * round + 2;
            ring(left_bell, Sleepers::for_news);
        }
    });
    left.join();
    right.join();
    std::ranges::nth_element(looks, looks.begin() + rounds / 2);
    CHECK(looks[rounds / 2] < 1000);  // a time slice has several times as many
}

TEST_CASE("what about_to_sleep says holds for the next pause") {
    Doorbell bell;
    WaitLoop wait_loop(bell, {.spin = 0us, .sleep_first = 1us, .sleep_limit = 1us});
    int spins = 0;
    for (; !wait_loop.about_to_sleep(); ++spins) wait_loop.pause();
    CHECK(spins > 0);
    wait_loop.pause();
    CHECK(wait_loop.about_to_sleep());
    wait_loop.progressed();
    CHECK_FALSE(wait_loop.about_to_sleep());
}
