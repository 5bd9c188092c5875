// The thread that moves what streams have copied to pinned memory.
#include "backends/device/host_mover.hpp"

#include <atomic>
#include <chrono>
#include <guozhuang/error.hpp>
#include <thread>

#include "device/host/fake_driver.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using guozhuang::backends::HostMover;
using namespace std::chrono_literals;

namespace {

/// Counts the bundles that it has moved.
struct CountingBackend final : engine::Backend {
    void run(const engine::Bundle&) override { ++moved; }

    std::atomic<int> moved{0};
};

struct RecordedBundle final : engine::StreamBundle {
    const engine::Bundle& bundle() const noexcept override { return empty; }
    bool attempt(const std::function<void()>& work) noexcept override {
        try {
            work();
        } catch (const Error& error) {
            failure = error.code();
            has_failed = true;
        }
        return !has_failed;
    }

    engine::Bundle empty;
    ErrorCode failure{};
    std::atomic<bool> has_failed{false};
};

/// A mover with a stream of the host fake.
struct Fixture {
    HostMover::Load load_of(std::size_t chunks) {
        return {
            .bundle = bundle, .chunks = std::vector<HostMover::Chunk>(chunks), .backend = backend};
    }

    std::shared_ptr<device::Driver> driver = device::make_fake_driver();
    std::shared_ptr<device::Stream> stream = driver->make_stream(0);
    std::shared_ptr<RecordedBundle> bundle = std::make_shared<RecordedBundle>();
    CountingBackend backend;
    std::atomic<bool> path_is_released{false};
    base::Doorbell doorbell;
    HostMover mover{{.driver = driver,
                     .device = 0,
                     .doorbell = doorbell,
                     .wait = {},
                     .was_released = [this] { return path_is_released.load(); },
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
    CHECK(test.backend.moved == 0);
    test.mover.announce(*test.stream, 0);
    test.mover.wait_for(*test.stream, 0);
    const auto first = test.stream->record();
    CHECK(comes([&] { return first->done(); }));
    CHECK(test.backend.moved == 1);
    test.mover.announce(*test.stream, 2);
    test.mover.wait_for(*test.stream, 2);
    const auto last = test.stream->record();
    CHECK(comes([&] { return last->done(); }));
    CHECK(test.backend.moved == 3);
    CHECK(!test.bundle->has_failed);
}

// It may be rubbish, and no message is to take it to a rank that cannot know that.
TEST_CASE("what is copied in after a path was released is not moved") {
    Fixture test;
    test.mover.add(test.load_of(1));
    test.path_is_released = true;
    test.mover.announce(*test.stream, 0);
    std::this_thread::sleep_for(20ms);
    CHECK(test.backend.moved == 0);
    CHECK(!test.bundle->has_failed);  // until the cause is known
    base::abort(test.doorbell, {});
    CHECK(comes([&] { return test.bundle->has_failed.load(); }));
    CHECK(test.backend.moved == 0);
}

TEST_CASE("a stream that waits for a chunk goes on when the mover is released") {
    Fixture test;
    test.mover.add(test.load_of(1));
    test.mover.wait_for(*test.stream, 0);
    const auto end = test.stream->record();
    std::this_thread::sleep_for(5ms);
    CHECK(!end->done());
    test.mover.release();
    test.mover.release();
    CHECK(comes([&] { return end->done(); }));
    test.mover.stop();
    CHECK(test.bundle->failure == ErrorCode::aborted);
}
