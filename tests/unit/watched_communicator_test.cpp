// The thread that watches an NCCL communicator, here one that does nothing.
#include "backends/device/watched_communicator.hpp"

#include <atomic>
#include <chrono>
#include <guozhuang/error.hpp>
#include <string>
#include <thread>

#include "support/fakes/recorded_bundle.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using namespace std::chrono_literals;
using backends::WatchedCommunicator;

namespace {

/// State of a fake communicator. It may outlive the communicator.
struct Story {
    std::atomic<bool> is_connected = true, has_failed = false, is_stuck = false;
    std::atomic<int> inside = 0, looks = 0;
    std::atomic<bool> two_inside = false, is_finalized = false, has_ended = false;
};

class Inside {
public:
    explicit Inside(Story& story) : story_(story) {
        if (++story.inside > 1) story.two_inside = true;
    }
    ~Inside() { --story_.inside; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

private:
    Story& story_;
};

class FakeCommunicator final : public device::NcclCommunicator {
public:
    explicit FakeCommunicator(std::shared_ptr<Story> story) : story_(std::move(story)) {}
    ~FakeCommunicator() override {
        const Inside inside(*story_);
        while (story_->is_stuck) std::this_thread::sleep_for(1ms);
        story_->has_ended = true;
    }
    bool is_ready() override {
        const Inside inside(*story_);
        ++story_->looks;
        if (story_->has_failed) throw Error(ErrorCode::unavailable, "NCCL: the cable is out");
        return story_->is_connected;
    }
    void group(const std::function<void()>& calls) override {
        const Inside inside(*story_);
        calls();
    }
    void allreduce(device::Stream&, const device::Reduction&, std::span<std::byte>) override {}
    void broadcast(device::Stream&, std::span<std::byte>, std::span<const std::byte>,
                   int) override {}
    void all_gather(device::Stream&, std::span<std::byte>, std::span<const std::byte>) override {}
    void reduce_scatter(device::Stream&, const device::Reduction&, std::span<std::byte>,
                        std::span<const std::byte>) override {}
    void reduce(device::Stream&, const device::Reduction&, std::span<std::byte>,
                std::span<const std::byte>, int) override {}
    void send(device::Stream&, std::span<const std::byte>, int) override {}
    void receive(device::Stream&, std::span<std::byte>, int) override {}
    void finalize() override {
        const Inside inside(*story_);
        story_->is_finalized = true;
    }

private:
    const std::shared_ptr<Story> story_;
};

struct FakeInUse {
    std::shared_ptr<Story> story = std::make_shared<Story>();
    std::shared_ptr<WatchedCommunicator> communicator =
        WatchedCommunicator::make(std::make_unique<FakeCommunicator>(story));
};

/// Ends it in a job that goes on.
bool stops(WatchedCommunicator& communicator) {
    const base::Doorbell job;
    return communicator.stop(job, 60s);
}

/// Returns when it is so; the test's watchdog ends what never is.
void wait_for(const std::atomic<bool>& so) {
    while (!so) std::this_thread::sleep_for(1ms);
}

std::string refusal(WatchedCommunicator& communicator) {
    try {
        communicator.is_ready();
        return "none";
    } catch (const Error& error) {
        return std::string(name_of(error.code()));
    }
}

}  // namespace

TEST_CASE("a failure of NCCL in the background fails the bundle that is on its way") {
    const FakeInUse watched;
    const auto bundle = std::make_shared<RecordedBundle>();
    watched.communicator->watch(bundle);
    watched.story->has_failed = true;
    wait_for(bundle->has_failed);
    CHECK(bundle->failure == "NCCL: the cable is out");
    CHECK(stops(*watched.communicator));
    CHECK(!watched.story->is_finalized);
    CHECK(watched.story->has_ended);
}

TEST_CASE("a communicator that is released is aborted") {
    const FakeInUse watched;
    REQUIRE(watched.communicator->is_ready());
    const auto bundle = std::make_shared<RecordedBundle>();
    watched.communicator->watch(bundle);
    watched.communicator->release();
    wait_for(watched.story->has_ended);
    CHECK(!watched.story->is_finalized);
    CHECK(refusal(*watched.communicator) == "aborted");
    CHECK(stops(*watched.communicator));
}

TEST_CASE("a communicator ends together with the other ranks") {
    const FakeInUse watched;
    REQUIRE(watched.communicator->is_ready());
    watched.communicator->watch(std::make_shared<RecordedBundle>());  // has ended
    CHECK(stops(*watched.communicator));
    CHECK(watched.story->is_finalized);
    CHECK(watched.story->has_ended);
}

TEST_CASE("a communicator is aborted if the job is over when it stops") {
    const FakeInUse watched;
    REQUIRE(watched.communicator->is_ready());
    base::Doorbell job;
    base::abort(job);
    CHECK(watched.communicator->stop(job, 60s));
    CHECK(watched.story->has_ended);
}

TEST_CASE("a communicator that never became ready ends alone") {
    const FakeInUse watched;
    watched.story->is_connected = false;
    REQUIRE(!watched.communicator->is_ready());
    CHECK(stops(*watched.communicator));
    CHECK(!watched.story->is_finalized);
    CHECK(watched.story->has_ended);
}

TEST_CASE("a communicator whose last calls are not done ends alone") {
    const FakeInUse watched;
    REQUIRE(watched.communicator->is_ready());
    watched.communicator->group([](device::NcclCommunicator&) {});
    CHECK(stops(*watched.communicator));
    CHECK(!watched.story->is_finalized);
}

TEST_CASE("one thread at a time is inside NCCL") {
    const FakeInUse watched;
    const auto bundle = std::make_shared<RecordedBundle>();
    watched.communicator->watch(bundle);
    watched.communicator->group([&](device::NcclCommunicator&) {
        // Longer than the thread waits between two looks.
        std::this_thread::sleep_for(150ms);
    });
    const int looks = watched.story->looks;
    while (watched.story->looks == looks) std::this_thread::sleep_for(1ms);
    CHECK(!watched.story->two_inside);
    CHECK(stops(*watched.communicator));
}

TEST_CASE("an NCCL that does not end is left to itself") {
    auto watched = std::make_unique<FakeInUse>();
    const auto story = watched->story;
    story->is_stuck = true;
    base::Doorbell job;
    base::abort(job);
    CHECK(!watched->communicator->stop(job, 20ms));
    watched.reset();
    CHECK(!story->has_ended);
    story->is_stuck = false;
    wait_for(story->has_ended);
}
