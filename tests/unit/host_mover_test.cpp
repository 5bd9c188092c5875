// The thread that moves what streams have copied to pinned memory.
#include "backends/device/host_mover.hpp"

#include <atomic>
#include <chrono>
#include <guozhuang/error.hpp>
#include <thread>

#include "support/fakes/fake_driver.hpp"
#include "support/fakes/recorded_bundle.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using guozhuang::backends::HostMover;
using namespace std::chrono_literals;

namespace {

/// Moves nothing, and is released by the rank that the flag stands for.
struct IdlePath final : backends::Path {
    explicit IdlePath(const std::atomic<bool>& flag) : is_released(flag) {}
    bool supports(const engine::Bundle&) const noexcept override { return false; }
    void enqueue(std::shared_ptr<engine::StreamBundle>, device::Stream&) override {}
    void release() noexcept override {}
    bool was_released() const noexcept override { return is_released; }
    void stop() noexcept override {}

    const std::atomic<bool>& is_released;
};

/// A mover with a stream of the host fake.
struct Fixture {
    Fixture() { paths.keep(std::make_unique<IdlePath>(path_is_released)); }
    HostMover::Load load_of(std::size_t chunks) {
        return {
            .bundle = bundle, .chunks = std::vector<HostMover::Chunk>(chunks), .backend = backend};
    }

    std::shared_ptr<device::Driver> driver = make_fake_driver();
    std::shared_ptr<device::Stream> stream = driver->make_stream(0);
    std::shared_ptr<RecordedBundle> bundle = std::make_shared<RecordedBundle>();
    std::atomic<int> moved{0};
    CountingBackend backend{moved};
    std::atomic<bool> path_is_released{false};
    backends::Paths paths;
    base::Doorbell doorbell;
    HostMover mover{{.driver = driver,
                     .device = 0,
                     .doorbell = doorbell,
                     .wait = {},
                     .paths = paths,
                     .owner = {}}};
};

bool comes(const auto& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return condition();
}

}  // namespace

TEST_CASE("a chunk is moved when it has been copied in, and its stream waits for that") {
    Fixture test;
    CHECK(test.mover.add(test.load_of(2)) == 0);
    CHECK(test.mover.add(test.load_of(0)) == 2);
    CHECK(test.mover.add(test.load_of(1)) == 2);
    std::this_thread::sleep_for(5ms);
    CHECK(test.moved == 0);
    test.mover.announce(*test.stream, 0);
    test.mover.wait_for(*test.stream, 0);
    const auto first = test.stream->record();
    CHECK(comes([&] { return first->done(); }));
    CHECK(test.moved == 1);
    test.mover.announce(*test.stream, 2);
    test.mover.wait_for(*test.stream, 2);
    const auto last = test.stream->record();
    CHECK(comes([&] { return last->done(); }));
    CHECK(test.moved == 3);
    CHECK(!test.bundle->has_failed);
}

// It may be rubbish, and no message is to take it to a rank that cannot know that.
TEST_CASE("what is copied in after a path was released is not moved") {
    Fixture test;
    test.mover.add(test.load_of(1));
    test.path_is_released = true;
    test.mover.announce(*test.stream, 0);
    std::this_thread::sleep_for(20ms);
    CHECK(test.moved == 0);
    CHECK(!test.bundle->has_failed);  // until the cause is known
    base::abort(test.doorbell, {});
    CHECK(comes([&] { return test.bundle->has_failed.load(); }));
    CHECK(test.moved == 0);
}

TEST_CASE("a stream does not go on while a chunk is being moved, though the mover is released") {
    /// Moves a chunk as long as the test wants.
    struct SlowBackend final : engine::Backend {
        void run(const engine::Bundle&) override {
            is_moving = true;
            while (is_moving) std::this_thread::yield();
        }
        std::atomic<bool> is_moving{false};
    } slow;
    Fixture test;
    test.mover.add(
        {.bundle = test.bundle, .chunks = std::vector<HostMover::Chunk>(2), .backend = slow});
    test.mover.announce(*test.stream, 0);
    test.mover.wait_for(*test.stream, 0);
    const auto end = test.stream->record();
    REQUIRE(comes([&] { return slow.is_moving.load(); }));
    test.mover.release();
    std::this_thread::sleep_for(20ms);
    CHECK(!end->done());
    slow.is_moving = false;
    CHECK(comes([&] { return end->done(); }));
}

TEST_CASE("a stream that waits for a chunk goes on when the mover is released") {
    Fixture test;
    test.mover.add(test.load_of(2));
    test.mover.announce(*test.stream, 0);
    REQUIRE(comes([&] { return test.moved == 1; }));  // so its thread has begun with the load
    test.mover.wait_for(*test.stream, 1);
    const auto end = test.stream->record();
    std::this_thread::sleep_for(5ms);
    CHECK(!end->done());
    test.mover.release();
    test.mover.release();
    CHECK(comes([&] { return end->done(); }));
    test.mover.stop();
    CHECK(test.bundle->failure == "the session has ended");
}
