// Memory whose owner goes while operations use it: ranks are threads.
#include "support/unwinding_cases.hpp"

#include <future>

#include "device/host/fake_driver.hpp"
#include "support/catch.hpp"
#include "support/engine_rank.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("owners of memory that go while operations are pending") {
    for (const int ranks : {1, 2, 3})
        for (const auto& body : all_unwinding_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("gradients on a device whose optimizer is gone") {
    const auto body = [](Session& session, Report& report) { exception_in_backward(session, report, 50'000, DeviceKind::fake); };
    for (const int ranks : {2, 3}) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("an operation whose data moves is waited for") {
    const bool on_a_stream = GENERATE(false, true);
    std::promise<void> started, gate;
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [&](const engine::Bundle&) {
        started.set_value();
        gate.get_future().wait();
    });
    if (on_a_stream) rank.run_on(device::make_fake_driver()->make_stream(0));
    const auto handle = rank.submit("moving");
    started.get_future().wait();
    auto released = std::async(std::launch::async, [&] {
        rank.engine().release_tensors([](const engine::Request&) { return true; });
        return handle.done();
    });
    CHECK(released.wait_for(20ms) == std::future_status::timeout);
    gate.set_value();
    CHECK(released.get());
}

TEST_CASE("the end of the job ends the wait for an operation") {
    wire::InprocHub hub(2);
    EngineRank here(hub.transport(0), [&](const engine::Bundle&) { throw Error(ErrorCode::wire, "mine"); });
    EngineRank there(hub.transport(1), [](const engine::Bundle&) {});
    const auto handle = here.submit("both"), other = there.submit("both");
    CHECK_THROWS_AS(handle.wait(), Error);
    here.engine().release_tensors([](const engine::Request&) { return true; });  // nothing is left
    CHECK(handle.done());
}
