// The engine with the test's backend: what becomes of the other ranks when one fails.
#include "engine/engine.hpp"

#include <array>
#include <atomic>
#include <future>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "engine/execution.hpp"
#include "support/fakes/engine_rank.hpp"
#include "support/fakes/fake_driver.hpp"
#include "support/fakes/forwarding_driver.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/report.hpp"
#include "wire/group/group_wire.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr wire::Tag data{0, wire::Lane::host_data, 0};

/// Waits for a message that never comes.
void wait_for_ever(wire::Transport& transport, int from) {
    std::array<std::byte, 8> bytes{};
    const std::vector<int> group_ranks{transport.rank(), from};
    wire::GroupWire wire(
        {.transport = transport, .ranks = group_ranks, .group_rank = 0, .tag = data});
    auto ticket = wire.receive(bytes, 1);
    wire.wait(ticket);
}

/// "code ranks text" of what the operation fails with.
std::string error_of(const Handle& handle) {
    try {
        handle.wait();
    } catch (const Error& error) {
        std::string ranks;
        for (const int rank : error.ranks()) ranks += std::to_string(rank) + " ";
        return std::string(name_of(error.code())) + " " + ranks + error.what();
    }
    return "none";
}

/// An in-process job of engines whose bundles fail on the last rank, while the others wait for it.
class FailingJob {
public:
    FailingJob(int ranks, const std::function<void()>& fail) : hub_(ranks) {
        for (int rank = 0; rank < ranks; ++rank) {
            auto& transport = *transports_.emplace_back(hub_.transport(rank));
            ranks_.push_back(std::make_unique<EngineRank>(
                transports_.back(), [&transport, fail, last = ranks - 1](const engine::Bundle&) {
                    transport.rank() == last ? fail() : wait_for_ever(transport, last);
                }));
        }
    }
    wire::Transport& transport(std::size_t rank) { return *transports_[rank]; }
    EngineRank& operator[](std::size_t rank) { return *ranks_[rank]; }

    /// Submits an operation on every rank, and returns the error of each.
    std::vector<std::string> errors() {
        std::vector<Handle> handles;
        std::vector<std::string> errors;
        for (auto& rank : ranks_) handles.push_back(rank->submit("together"));
        for (const auto& handle : handles) errors.push_back(error_of(handle));
        return errors;
    }

private:
    wire::InprocHub hub_;
    std::vector<std::shared_ptr<wire::Transport>> transports_;
    std::vector<std::unique_ptr<EngineRank>> ranks_;
};

}  // namespace

TEST_CASE("a rank that fails in the middle of a bundle ends the job for all, with its words") {
    const int ranks = GENERATE(2, 3, 4);
    const bool on_stream = GENERATE(false, true);
    const auto check = [&](const std::function<void()>& fail, const std::string& own,
                           const std::string& words) {
        FailingJob job(ranks, fail);
        const auto streams = make_fake_driver();
        for (std::size_t rank = 0; on_stream && rank < static_cast<std::size_t>(ranks); ++rank)
            job[rank].run_on_stream_of(streams);
        auto errors = job.errors();
        CHECK(errors.back() == text_of(own, " ", ranks - 1, " ", words));
        errors.pop_back();
        const auto last = ranks - 1;
        const auto expected =
            text_of("aborted ", last, " rank ", last, " has ended the job: ", words);
        for (const auto& error : errors) CHECK(error == expected);
        CHECK_THROWS_AS(job[0].submit("later"), Error);
    };
    check([] { throw Error(ErrorCode::wire, "the cable is out"); }, "wire",
          "allreduce 'together': the cable is out");
    check([] { throw std::bad_alloc(); }, "out_of_memory",
          "allreduce 'together': not enough memory");
    check(
        [&] {
            throw Error(ErrorCode::wire, "broadcast 'x': no",
                        {.operation = "broadcast", .ranks = {ranks - 1}});
        },
        "wire", "broadcast 'x': no");
}

namespace {

/// Its streams never come to the end of a bundle.
class FailedDriver final : public ForwardingDriver {
public:
    using ForwardingDriver::ForwardingDriver;
    void write(device::Stream&, device::Word&, std::uint32_t) override {}
    void require_healthy(int) const override {
        throw Error(ErrorCode::unavailable, "the device has failed");
    }
};

}  // namespace

TEST_CASE("a device that fails ends the job for all, and the text says what was under way") {
    wire::InprocHub hub(2);
    const std::shared_ptr<wire::Transport> other = hub.transport(0);
    EngineRank first(other, [&](const engine::Bundle&) { wait_for_ever(*other, 1); }),
        second(hub.transport(1), [](const engine::Bundle&) {});
    second.run_on_stream_of(std::make_shared<FailedDriver>(make_fake_driver()));
    const auto there = first.submit("grad"), here = second.submit("grad");
    CHECK(error_of(here) == "unavailable 1 allreduce 'grad': the device has failed");
    CHECK(error_of(there) ==
          "aborted 1 rank 1 has ended the job: allreduce 'grad': the device has failed");
}

TEST_CASE("an error names the first tensor of a bundle, and says how many others there are") {
    const auto cause = std::make_exception_ptr(Error(ErrorCode::unavailable, "it has failed"));
    const auto text = [&](const engine::FailedWork& work) {
        try {
            std::rethrow_exception(engine::as_error(cause, work, 3));
        } catch (const Error& error) {
            return text_of(error.operation(), "|", error.tensor(), "|", error.what());
        }
    };
    CHECK(text({}) == "||it has failed");
    CHECK(text({"allreduce", "a", 0}) == "allreduce|a|allreduce 'a': it has failed");
    CHECK(text({"allreduce", "a", 1}) == "allreduce|a|allreduce 'a' and 1 other: it has failed");
    CHECK(text({"allreduce", "a", 2}) == "allreduce|a|allreduce 'a' and 2 others: it has failed");
    CHECK(text({.operation = "send to 1"}) == "send to 1||send to 1: it has failed");
}

TEST_CASE("a corrupt control message ends the job for all, naming its sender") {
    FailingJob job(3, [] {});
    const auto waiting = job[2].submit("waits for the others"),
               receiver = job[0].submit("receives");
    job.transport(1).send(0, {0, wire::Lane::control, 0}, std::array<std::byte, 3>{});
    CHECK(error_of(receiver).find("wire 1 rank 1 sent a control message that") == 0);
    CHECK(error_of(waiting).find(
              "aborted 0 rank 0 has ended the job: rank 1 sent a control message that") == 0);
}

TEST_CASE("a rank whose engine stops in the middle of a bundle ends it for the others") {
    std::promise<void> running;
    std::function<void()> last_rank;
    FailingJob job(2, [&] { last_rank(); });
    last_rank = [&] {
        running.set_value();
        wait_for_ever(job.transport(1), 0);
    };
    const auto stays = job[0].submit("together"), stops = job[1].submit("together");
    running.get_future().wait();
    job[1].engine().stop();
    CHECK(error_of(stays) == "departed 1 rank 1 has shut down; allreduce 'together' waits for it");
    CHECK(error_of(stops).find("aborted ") == 0);
}

namespace {

/// A transport whose messages cannot be stopped, as MPI's long sends cannot.
class UnstoppableJobControl final : public engine::JobControl {
public:
    explicit UnstoppableJobControl(bool stoppable) : stoppable_(stoppable) {}
    void abort(const base::AbortCause&) noexcept override {}
    std::optional<trace::RankStatus> look_at(int) override { return std::nullopt; }
    bool abandon() noexcept override { return stoppable_; }

private:
    bool stoppable_;
};

}  // namespace

TEST_CASE("memory that messages may still use is not let go when the job ends") {
    const bool stoppable = GENERATE(true, false);
    const LogCapture log;
    const auto released = std::make_shared<bool>(false);  // outlives what is never released
    {
        wire::InprocHub hub(1);
        EngineRank rank(hub.transport(0),
                        [](const engine::Bundle&) { throw Error(ErrorCode::wire, "mine"); },
                        {.job = std::make_shared<UnstoppableJobControl>(stoppable)});
        const std::shared_ptr<void> owner(nullptr, [released](void*) { *released = true; });
        const auto handle = rank.submit("kept", owner);
        const std::string note =
            "; MPI may still use the memory of operations that were pending: neither free it nor "
            "use it again";
        CHECK(error_of(handle) == "wire 0 allreduce 'kept': mine" + (stoppable ? "" : note));
        CHECK(rank.engine().left_memory_on_loan() == !stoppable);
    }
    CHECK(*released == stoppable);
}

namespace {

/// A mail service that is out of memory.
class NoMail final : public engine::Mail {
public:
    Ticket send(int, std::uint16_t, std::span<const std::byte>) override { throw std::bad_alloc(); }
    Ticket receive(int, std::uint16_t, std::span<std::byte>) override { throw std::bad_alloc(); }
    bool test(Ticket&) override { return false; }
};

}  // namespace

TEST_CASE(
    "a limit ends the job for all that is pending and all that comes later, though a bundle is "
    "under way") {
    std::atomic<bool> held = true;
    wire::InprocHub hub(2);
    EngineRank* zero = nullptr;
    const auto hold = [&](const engine::Bundle&) {
        base::WaitLoop wait_loop(zero->doorbell(), {});
        while (held) zero->engine().pump() ? wait_loop.progressed() : wait_loop.pause();
    };
    EngineRank first(hub.transport(0), hold),
        second(hub.transport(1), [](const engine::Bundle&) {});
    zero = &first;
    const auto held_bundle = first.submit("long"), other = second.submit("long");
    other.wait();
    const auto lonely = second.submit("lonely");
    const auto late = error_of(first.submit("x", {}, base::Clock::now() + 20ms));
    CHECK(late.starts_with("timeout 1 allreduce 'x' has been waiting for "));
    CHECK(late.find("; rank 1 has not submitted it") != std::string::npos);
    for (const auto& handle : {held_bundle, lonely}) CHECK(error_of(handle) == late);
    for (auto* rank : {&first, &second})
        CHECK_THROWS_WITH(rank->submit("later"),
                          Catch::Matchers::Contains("; rank 1 has not submitted it"));
    held = false;
}

TEST_CASE("a send that cannot be made ends the job for both sides, and no handle is left pending") {
    NoMail none;
    wire::InprocHub hub(2);
    const auto nothing = [](const engine::Bundle&) {};
    EngineRank sender(hub.transport(0), nothing, {.mail = &none}),
        receiver(hub.transport(1), nothing);
    const auto received = receiver.submit(protocol::Route{.peer = 0, .tag = 7, .sending = false});
    const auto other = sender.submit(protocol::Route{.peer = 1, .tag = 8, .sending = true});
    const auto sent = sender.submit(protocol::Route{.peer = 1, .tag = 7, .sending = true});
    for (const auto& handle : {sent, other})
        CHECK(error_of(handle) == "out_of_memory 0 not enough memory");
    CHECK(error_of(received) == "aborted 0 rank 0 has ended the job: not enough memory");
    for (const auto& handle : std::vector{sent, other, received}) CHECK(handle.done());
}

TEST_CASE("a receive that cannot be made ends the job for both sides") {
    NoMail none;
    wire::InprocHub hub(2);
    const auto nothing = [](const engine::Bundle&) {};
    EngineRank sender(hub.transport(0), nothing),
        receiver(hub.transport(1), nothing, {.mail = &none});
    const auto sent = sender.submit(protocol::Route{.peer = 1, .tag = 7, .sending = true});
    const auto received = receiver.submit(protocol::Route{.peer = 0, .tag = 7, .sending = false});
    CHECK(error_of(received) == "out_of_memory 1 not enough memory");
    CHECK(error_of(sent) == "aborted 1 rank 1 has ended the job: not enough memory");
}

namespace {

/// Runs the test's code when it is let go.
std::shared_ptr<void> when_released(std::function<void()> act) {
    return {nullptr, [act = std::move(act)](void*) { act(); }};
}

}  // namespace

TEST_CASE("what an operation kept alive may call the library while it goes") {
    const bool on_stream = GENERATE(false, true);
    CAPTURE(on_stream);
    const auto streams = make_fake_driver();
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [](const engine::Bundle&) {});
    if (on_stream) rank.run_on_stream_of(streams);
    std::string inner = "not run";
    // With an owner of its own, it cannot be complete before it is waited for.
    const auto outer = rank.submit("outer", when_released([&] {
                                       const auto handle =
                                           rank.submit("inner", when_released([] {}));
                                       inner = error_of(handle);
                                   }));
    CHECK(error_of(outer) == "none");
    const std::string refusal =
        "invalid_argument allreduce 'inner' cannot be waited for here: the thread that lets go of "
        "what operations on devices kept alive completes operations on devices";
    CHECK(inner == (on_stream ? refusal : "none"));
}

TEST_CASE("what a failed bundle kept alive may wait for the device while it goes") {
    const auto streams = make_fake_driver();
    const auto completions = std::make_shared<engine::Completions>(streams);
    wire::InprocHub hub(1), other_hub(1);
    EngineRank other(other_hub.transport(0), [](const engine::Bundle&) {});
    other.run_on_stream_of(streams, completions);
    bool inner = false;
    {
        EngineRank rank(hub.transport(0),
                        [](const engine::Bundle&) { throw Error(ErrorCode::wire, "mine"); });
        rank.run_on_stream_of(streams, completions);
        const auto outer = rank.submit(
            "outer", when_released([&] { inner = other.submit("inner").wait_for(10s); }));
        CHECK(error_of(outer) == "wire 0 allreduce 'outer': mine");
    }
    CHECK(inner);
}

TEST_CASE("a send that nobody has taken lets go of its device, though its handle stays") {
    const auto streams = make_fake_driver();
    auto completions = std::make_shared<engine::Completions>(streams);
    const std::weak_ptr<engine::Completions> watched = completions;
    wire::InprocHub hub(2);
    std::optional<Handle> sent;
    {
        EngineRank sender(hub.transport(0), [](const engine::Bundle&) {}, {.own_thread = false});
        sender.run_on_stream_of(streams, std::move(completions));
        sent = sender.submit(protocol::Route{.peer = 1, .sending = true});
    }
    CHECK(watched.expired());
    CHECK(sent->done());
}

TEST_CASE("a backend is released again and again until its stream has ended") {
    const auto streams = make_fake_driver();
    wire::InprocHub hub(1);
    std::atomic<bool> running{false};
    std::atomic<int> releases{0};
    const auto until_released_thrice = [&](const engine::Bundle&) {
        running = true;
        const auto deadline = base::Clock::now() + 10s;
        while (releases < 3 && base::Clock::now() < deadline) std::this_thread::yield();
    };
    {
        EngineRank rank(hub.transport(0), until_released_thrice);
        rank.run_on_stream_of(streams, std::make_shared<engine::Completions>(streams),
                              [&] { ++releases; });
        const auto held = rank.submit("held");
        while (!running) std::this_thread::yield();
        base::abort(rank.doorbell(), {.rank = 0, .text = "it is over", .code = ErrorCode::aborted});
        CHECK(error_of(held).ends_with("it is over"));
    }
    CHECK(releases >= 3);
}

TEST_CASE("what a send or receive kept alive may call the library while it goes") {
    wire::InprocHub hub(2);
    const auto nothing = [](const engine::Bundle&) {};
    EngineRank sender(hub.transport(0), nothing), receiver(hub.transport(1), nothing);
    std::string inner = "not run";
    const auto call = [&] {
        const auto there = receiver.submit("inner");
        inner = error_of(sender.submit("inner"));
        there.wait();
    };
    const auto sent =
        sender.submit(protocol::Route{.peer = 1, .sending = true}, when_released(call));
    const auto received = receiver.submit(protocol::Route{.peer = 0, .sending = false});
    CHECK(error_of(sent) == "none");
    CHECK(error_of(received) == "none");
    CHECK(inner == "none");
}

TEST_CASE("what an operation kept alive may call the library while the job ends") {
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0),
                    [](const engine::Bundle&) { throw Error(ErrorCode::wire, "mine"); });
    const auto message = rank.submit(protocol::Route{.peer = 0});
    std::string inner = "not run";
    const auto outer = rank.submit("outer", when_released([&] { inner = error_of(message); }));
    CHECK(error_of(outer) == "wire 0 allreduce 'outer': mine");
    // Another thread may still let go of what the operation kept alive.
    while (!outer.done()) std::this_thread::yield();
    CHECK(inner == "wire 0 allreduce 'outer': mine");
}

TEST_CASE("whoever waits while another thread completes a failed operation gets its own error") {
    wire::InprocHub hub(2);
    EngineRank rank(hub.transport(0), [](const engine::Bundle&) {});
    std::promise<void> completing, told;
    const auto pending = rank.submit("grad", when_released([&] {
                                         completing.set_value();
                                         told.get_future().wait();
                                     }));
    base::abort(rank.doorbell(), {.rank = 1, .text = "rank 1 died", .code = ErrorCode::rank_died});
    completing.get_future().wait();  // the coordinator has ended it, and releases its memory
    CHECK(error_of(pending) == "rank_died 1 rank 1 died; allreduce 'grad' waits for it");
    CHECK_FALSE(pending.done());
    told.set_value();
    while (!pending.done()) std::this_thread::yield();
}

TEST_CASE("a log callback may call the library") {
    wire::InprocHub hub(2);
    const auto nothing = [](const engine::Bundle&) {};
    EngineRank stays(hub.transport(0), nothing), quits(hub.transport(1), nothing);
    std::string inner = "not run";
    set_log_callback([&](LogLevel, std::string_view) { inner = error_of(stays.submit("inner")); });
    stays.submit("nobody waits for it");
    quits.engine().quit("early");
    quits.engine().drain_before_exit(base::Clock::now() + 20s);
    CHECK(error_of(stays.submit("waits")).find("departed 1 rank 1 has shut down (early)") == 0);
    set_log_callback({});
    CHECK(inner.find("departed 1 rank 1 has shut down (early)") == 0);
}
