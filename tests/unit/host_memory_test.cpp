#include "wire/shm/host_memory.hpp"

#include <atomic>
#include <guozhuang/error.hpp>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "support/runner/catch.hpp"
#include "support/runner/open_files.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using test::open_files;
using wire::HostMemory;

namespace {

constexpr int two = 2;

ErrorCode refusal(const HostMemory::Offer& offer, int ranks) {
    try {
        HostMemory::attach(offer, ranks);
    } catch (const Error& error) {
        return error.code();
    }
    return ErrorCode::internal;
}

}  // namespace

TEST_CASE("a ring through one mapping wakes a thread that sleeps on another") {
    auto mine = HostMemory::create(3);
    auto theirs = HostMemory::attach(mine.offer(), 3);
    REQUIRE(&mine.bell(1) != &theirs.bell(1));
    std::atomic<bool> news{false};
    bool in_time = true;
    std::thread sleeper([&] {
        in_time = base::wait_until(
            mine.bell(1), {.spin = 0us, .sleep_first = 60s, .sleep_limit = 60s},
            [&] { return news.load(); }, base::Clock::now() + 20s);
    });
    while (theirs.bell(1).asleep(base::Sleepers::for_news).load() == 0) std::this_thread::yield();
    news = true;
    base::ring(theirs.bell(1), base::Sleepers::for_news);
    sleeper.join();
    CHECK(in_time);
    CHECK(mine.bell(0).rings.load() == 0);
    CHECK(mine.bell(2).rings.load() == 0);
}

TEST_CASE("only the memory that was offered is attached to") {
    auto memory = HostMemory::create(two);
    const auto good = memory.offer();
    CHECK(refusal({}, two) == ErrorCode::unavailable);
    CHECK(refusal({good.process, good.file, good.nonce + 1}, two) == ErrorCode::unavailable);
    CHECK(refusal(good, 3) == ErrorCode::unavailable);
    CHECK(refusal({good.process, 0, good.nonce}, two) == ErrorCode::unavailable);
    CHECK(refusal({good.process, 9999, good.nonce}, two) == ErrorCode::unavailable);
    CHECK_NOTHROW(HostMemory::attach(good, two));
    memory.close_file();
    CHECK(refusal(good, two) == ErrorCode::unavailable);
}

TEST_CASE("what is touched is real memory beforehand, so that a lack of it is no SIGBUS") {
    auto memory = HostMemory::create(two);
    const auto real_bytes = [file = static_cast<int>(memory.offer().file)] {
        struct stat facts {};
        fstat(file, &facts);
        return static_cast<std::size_t>(facts.st_blocks) * 512;
    };
    CHECK(real_bytes() >= 2 * (sizeof(base::Doorbell) + sizeof(trace::Activity)) +
                              wire::MessageRings::bytes_for(2));
}

TEST_CASE("shared memory cannot be resized, and leaves no file open") {
    const auto before = open_files();
    {
        auto memory = HostMemory::create(two);
        const auto file = static_cast<int>(memory.offer().file);
        CHECK(ftruncate(file, 0) != 0);
        CHECK(ftruncate(file, 1 << 20) != 0);
        auto attached = HostMemory::attach(memory.offer(), two);
        CHECK(open_files() == before + 2);
        memory.close_file();
        attached.close_file();
        CHECK(open_files() == before);
        base::ring(attached.bell(0), base::Sleepers::for_news);
        CHECK(memory.bell(0).rings.load() == 1);
        auto moved = std::move(memory);
        CHECK(moved.bell(0).rings.load() == 1);
    }
    CHECK(open_files() == before);
}

TEST_CASE("huge pages begin at the same bytes for all, and keep what lies in them") {
    constexpr std::size_t bytes = 5'000'003, huge = std::size_t{2} << 20;
    auto mine = wire::SharedFile::create(bytes);
    mine.reserve(0, bytes);
    const auto theirs = wire::SharedFile::attach(mine.offer(), bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(mine.memory().data()) % huge ==
          reinterpret_cast<std::uintptr_t>(theirs.memory().data()) % huge);
    for (std::size_t i = 0; i < bytes; ++i) mine.memory()[i] = static_cast<std::byte>(i % 251);
    mine.use_huge_pages();
    theirs.memory().back() = std::byte{252};
    CHECK(mine.memory().back() == std::byte{252});
    bool kept = true;
    for (std::size_t i = 0; i + 1 < bytes; ++i)
        kept = kept && theirs.memory()[i] == static_cast<std::byte>(i % 251);
    CHECK(kept);
    wire::SharedFile::create(100).use_huge_pages();
}
