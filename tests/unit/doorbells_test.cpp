#include "wire/doorbells.hpp"

#include <atomic>
#include <filesystem>
#include <guozhuang/error.hpp>
#include <thread>
#include <unistd.h>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using wire::Doorbells;

namespace {

std::size_t open_files() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

ErrorCode refusal(const Doorbells::Offer& offer, int ranks) {
    try {
        Doorbells::attach(offer, ranks);
    } catch (const Error& error) {
        return error.code();
    }
    return ErrorCode::internal;
}

}  // namespace

TEST_CASE("a ring through one mapping wakes a thread that sleeps on another") {
    auto mine = Doorbells::create(3);
    auto theirs = Doorbells::attach(mine.offer(), 3);
    REQUIRE(&mine[1] != &theirs[1]);
    std::atomic<bool> news{false};
    bool in_time = true;
    std::thread sleeper([&] {
        try {
            base::wait_until(
                mine[1], {.spin = 0us, .park_first = 60s, .park_limit = 60s}, [&] { return news.load(); }, base::Clock::now() + 20s);
        } catch (const Error&) {
            in_time = false;
        }
    });
    while (theirs[1].asleep.load() == 0) std::this_thread::yield();
    news = true;
    base::ring(theirs[1]);
    sleeper.join();
    CHECK(in_time);
    CHECK(mine[0].rings.load() == 0);
    CHECK(mine[2].rings.load() == 0);
}

TEST_CASE("only the doorbells that were offered are attached to") {
    auto bells = Doorbells::create(2);
    const auto good = bells.offer();
    CHECK(refusal({}, 2) == ErrorCode::unavailable);
    CHECK(refusal({good.process, good.file, good.nonce + 1}, 2) == ErrorCode::unavailable);
    CHECK(refusal(good, 3) == ErrorCode::unavailable);
    CHECK(refusal({good.process, 0, good.nonce}, 2) == ErrorCode::unavailable);
    CHECK(refusal({good.process, 9999, good.nonce}, 2) == ErrorCode::unavailable);
    CHECK_NOTHROW(Doorbells::attach(good, 2));
    bells.close_file();
    CHECK(refusal(good, 2) == ErrorCode::unavailable);
}

TEST_CASE("doorbells cannot be resized, and leave no file open") {
    const auto before = open_files();
    {
        auto bells = Doorbells::create(2);
        const auto file = static_cast<int>(bells.offer().file);
        CHECK(ftruncate(file, 0) != 0);
        CHECK(ftruncate(file, 1 << 20) != 0);
        auto attached = Doorbells::attach(bells.offer(), 2);
        CHECK(open_files() == before + 1);
        bells.close_file();
        CHECK(open_files() == before);
        base::ring(attached[0]);
        CHECK(bells[0].rings.load() == 1);
        auto moved = std::move(bells);
        CHECK(moved[0].rings.load() == 1);
    }
    CHECK(open_files() == before);
}
