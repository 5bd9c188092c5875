// Memory whose owner goes while operations use it: ranks are threads.
#include "support/cases/unwinding_cases.hpp"

#include <future>
#include <optional>

#include "support/fakes/engine_rank.hpp"
#include "support/fakes/fake_driver.hpp"
#include "support/runner/catch.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("an exception in backward while the gradients are on their way") {
    for (const int ranks : {1, 2, 3}) CHECK(problems_among(ranks, exceptions_in_backward) == "");
}

TEST_CASE("an arena that is gone while its tensors are on their way") {
    for (const int ranks : {1, 2, 3}) CHECK(problems_among(ranks, arena_gone_in_flight) == "");
}

TEST_CASE("a registration that ends while its tensors are on their way") {
    for (const int ranks : {1, 2, 3})
        CHECK(problems_among(ranks, registration_ended_in_flight) == "");
}

TEST_CASE("gradients on a device whose optimizer is gone") {
    const auto body = [](Session& session, Report& report) {
        exception_in_backward(session, report, 50'000, DeviceKind::cuda);
    };
    for (const int ranks : {2, 3}) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("a bundle whose plan goes before the wait that was promised still moves") {
    std::promise<void> submitted, moved;
    const auto body = [&](Session& session, Report& report) {
        std::vector<float> tensor{1, 2};
        std::optional<Plan> plan(std::in_place,
                                 std::vector<std::vector<NamedTensor>>{{{"w", TensorView(tensor)}}},
                                 PlanOptions{.session = &session});
        if (session.rank() == 0) {
            submitted.get_future().wait();
            auto has_moved = moved.get_future();
            has_moved.wait_for(100ms);  // meanwhile the coordinator falls asleep
            plan->ready(0, {.waits_next = true});
            plan.reset();
            // Calls nothing of the library until the other rank has its sums.
            report.expect(has_moved.wait_for(60s) == std::future_status::ready,
                          "the bundle does not move");
        } else {
            plan->ready(0);
            submitted.set_value();
            plan->wait();
            moved.set_value();
        }
    };
    CHECK(problems_among(2, body) == "");
}

TEST_CASE("an operation whose data moves is waited for") {
    const bool on_a_stream = GENERATE(false, true);
    std::promise<void> started, gate;
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [&](const engine::Bundle&) {
        started.set_value();
        gate.get_future().wait();
    });
    if (on_a_stream) rank.run_on_stream_of(make_fake_driver());
    const auto handle = rank.submit("moving");
    started.get_future().wait();
    auto released = std::async(std::launch::async, [&] {
        rank.engine().release_tensors([](const engine::SharedTensors&) { return true; });
        return handle.done();
    });
    CHECK(released.wait_for(20ms) == std::future_status::timeout);
    gate.set_value();
    CHECK(released.get());
}

// Slow, so that no sanitizer runs it: they end what asks for too much memory.
TEST_CASE("an operation for whose tensors there is no other memory is waited for", "[.slow]") {
    wire::InprocHub hub(2);
    EngineRank here(hub.transport(0), [](const engine::Bundle&) {}),
        there(hub.transport(1), [](const engine::Bundle&) {});
    float number = 0;
    const Shape huge{std::int64_t{1} << 59};
    const engine::Request request{
        .name = "huge",
        .description =
            protocol::share(protocol::Description{.tensors = {{"huge", DType::f32, huge}}}),
        .tensors = {TensorView(&number, DType::f32, huge)}};
    const Handle handle(here.engine().submit(engine::Request(request), false));
    auto released = std::async(std::launch::async, [&] {
        here.engine().release_tensors(
            [&](const engine::SharedTensors& each) { return each == request.tensors; });
        return handle.done();
    });
    CHECK(released.wait_for(20ms) == std::future_status::timeout);
    const Handle other(there.engine().submit(engine::Request(request), false));
    CHECK(released.get());
    other.wait();
}

TEST_CASE("an operation that fails while its data moves is waited for, too") {
    std::promise<void> started, gate;
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [&](const engine::Bundle&) {
        started.set_value();
        gate.get_future().wait();
        throw Error(ErrorCode::wire, "mine");
    });
    const auto handle = rank.submit("moving");
    started.get_future().wait();
    auto released = std::async(std::launch::async, [&] {
        try {
            rank.engine().release_tensors([](const engine::SharedTensors&) { return true; });
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
            // The job is over, if this thread sees that first.
        }
    });
    CHECK(released.wait_for(20ms) == std::future_status::timeout);
    gate.set_value();
    released.get();
    CHECK_THROWS_AS(handle.wait(), Error);
}
