// The operations of a rank that are not complete, without an engine around them.
#include <fmt/format.h>

#include "engine/submission_queue.hpp"
#include "support/runner/catch.hpp"
#include "wire/inproc/inproc_transport.hpp"

namespace guozhuang::test {
namespace {

/// The queue of a rank that is alone; a test plays the thread that drives.
class LoneQueue {
public:
    engine::SubmissionQueue& operator*() { return queue_; }
    engine::SubmissionQueue* operator->() { return &queue_; }

    /// Submits an operation and takes it.
    std::shared_ptr<engine::Pending> submit(std::string name) {
        auto pending = queue_.submit({.name = std::move(name)}, nullptr, true);
        queue_.take(taken_);
        return pending;
    }
    /// How often the thread that drives has been woken.
    std::uint32_t rings() const { return transport_->doorbell().rings.load(); }
    void complete(std::shared_ptr<engine::Pending> pending) {
        queue_.end(std::span(&pending, 1), nullptr);
        queue_.complete_ended();
    }
    std::pair<std::exception_ptr, engine::SubmissionQueue::Tables> fail() {
        return queue_.fail(std::make_exception_ptr(Error(ErrorCode::aborted, "the end")));
    }

private:
    wire::InprocHub hub_{1};
    const std::shared_ptr<wire::Transport> transport_ = hub_.transport(0);
    const engine::Context context_{.job = transport_,
                                   .timeline = std::make_shared<trace::Timeline>(),
                                   .group_ranks = protocol::GroupRanks(std::vector{0}),
                                   .doorbell = transport_->doorbell(),
                                   .activity = transport_->activity(),
                                   .wait = transport_->wait_settings()};
    engine::LifeCycle life_;
    engine::SubmissionQueue queue_{context_, life_};
    engine::SubmissionQueue::Taken taken_;
};

}  // namespace

TEST_CASE("rows of names under which nothing is pending are dropped when there are many") {
    LoneQueue queue;
    const auto lasting = queue.submit("lasting");
    for (int i = 0; i < 50'000; ++i) queue.complete(queue.submit(fmt::format("name {}", i)));
    CHECK_THROWS_AS(queue.submit("lasting"), Error);
    const auto rows = queue.fail().second.named;
    CHECK(rows.size() > 1);
    CHECK(rows.size() <= 16384);
    CHECK(rows.at("lasting") == lasting);
    CHECK_THROWS_AS(lasting->rethrow(), Error);
}

TEST_CASE("a name that was submitted before takes its row again") {
    LoneQueue queue;
    for (int i = 0; i < 3; ++i) {
        const auto pending = queue.submit("again");
        CHECK_THROWS_AS(queue.submit("again"), Error);
        queue.complete(pending);
        CHECK(pending->complete());
    }
    CHECK(queue.fail().second.named.size() == 1);
}

TEST_CASE("the thread that drives is woken once for what it has not yet taken") {
    LoneQueue queue;
    const auto wakes_driver = [&](const char* name, bool caller_waits) {
        const auto before = queue.rings();
        queue->submit({.name = name}, nullptr, caller_waits);
        return queue.rings() != before;
    };
    CHECK_FALSE(queue->has_untaken());
    CHECK_FALSE(wakes_driver("a", true));
    CHECK(queue->has_untaken());
    CHECK(wakes_driver("b", false));  // the caller of the first may come late
    CHECK_FALSE(wakes_driver("c", false));
    engine::SubmissionQueue::Taken taken;
    queue->take(taken);
    CHECK_FALSE(queue->has_untaken());
    CHECK(wakes_driver("d", false));
    queue.fail();
    queue->complete_ended();
}

TEST_CASE("a neutral contribution on a stream ends with the job") {
    LoneQueue queue;
    const engine::Requests neutral{std::make_shared<engine::Pending>(
        engine::Request{.kind = engine::Request::Kind::neutral}, nullptr)};
    queue->add_neutral(neutral);
    queue->free_names(neutral);  // it is enqueued
    queue.fail();
    CHECK(neutral.front()->has_ended());
    queue->complete_ended();
    CHECK_FALSE(queue->has_pending());
}

}  // namespace guozhuang::test
