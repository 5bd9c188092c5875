// The engine with the test's backend: who drives it.
#include <atomic>
#include <future>
#include <thread>

#include "engine/engine.hpp"
#include "engine/execution.hpp"
#include "support/fakes/engine_rank.hpp"
#include "support/runner/catch.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Bundles that last until they are let go, unless it is the test's own thread that was made to run
/// them: that is counted, and not waited for.
class HeldBundles {
public:
    ~HeldBundles() { let_go(); }
    void let_go() {
        if (!std::exchange(free_, true)) gate_.set_value();
    }
    void run() {
        if (std::this_thread::get_id() == caller_) {
            ++run_by_caller_;
        } else {
            begun_ = true;
            open_.wait();
        }
    }
    void until_begun() const {
        while (!begun_) std::this_thread::yield();
    }
    int run_by_caller() const { return run_by_caller_; }

private:
    const std::thread::id caller_ = std::this_thread::get_id();
    std::atomic<int> run_by_caller_{0};
    std::atomic<bool> begun_{false};
    std::promise<void> gate_;
    std::shared_future<void> open_ = gate_.get_future().share();
    bool free_ = false;
};

}  // namespace

TEST_CASE("asking whether an operation is done runs no bundle") {
    for (int again = 0; again < 50; ++again) {
        HeldBundles bundles;
        wire::InprocHub hub(1);
        EngineRank rank(hub.transport(0), [&](const engine::Bundle&) { bundles.run(); });
        const auto handle = rank.submit("long");
        for (int look = 0; look < 100; ++look) CHECK_FALSE(handle.done());
        bundles.let_go();
        while (!handle.done()) std::this_thread::yield();
        CHECK(bundles.run_by_caller() == 0);
    }
}

/// The coordinator takes each operation while its caller is about to say that it is there.
TEST_CASE("operations that nobody waits for are done, one after another") {
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [](const engine::Bundle&) {});
    for (int again = 0; again < 20'000; ++again) {
        const auto handle = rank.submit("again");
        while (!handle.done()) {
        }
    }
}

TEST_CASE("a wait with a limit returns while a large bundle goes on") {
    HeldBundles bundles;
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [&](const engine::Bundle&) { bundles.run(); },
                    {.elements = 1 << 20});
    const auto handle = rank.submit("long");
    for (const auto limit : {0us, 1us, 2000us}) CHECK_FALSE(handle.wait_for(limit));
    bundles.let_go();
    CHECK(handle.wait_for(20s));
    CHECK(bundles.run_by_caller() == 0);
}

TEST_CASE("a wait with a limit runs a small bundle itself, and no large one") {
    wire::InprocHub hub(1);
    const bool is_large = GENERATE(false, true);
    EngineRank rank(hub.transport(0), [](const engine::Bundle&) {},
                    {.own_thread = false, .elements = is_large ? 1 << 20 : 1 << 10});
    const auto handle = rank.submit("grad");
    CHECK(handle.wait_for(is_large ? 2ms : 20s) == !is_large);
    handle.wait();
}

TEST_CASE("an all_gather moves what every rank sends") {
    const auto moves_little = [](OperationKind operation, int ranks) {
        std::vector<float> quarter(1 << 16);
        engine::Request request{
            .description = protocol::share(protocol::Description{.operation = operation}),
            .tensors = {TensorView(quarter)}};
        const auto pending = std::make_shared<engine::Pending>(std::move(request), nullptr);
        return engine::moves_little({.items = {{.name = {}, .submitter = pending}}}, ranks);
    };
    using enum OperationKind;
    CHECK(moves_little(all_gather, 4));
    CHECK_FALSE(moves_little(all_gather, 5));
    CHECK(moves_little(allreduce, 5));
}

TEST_CASE(
    "a caller that waits for the coordinator's bundle is not woken by news from other ranks") {
    HeldBundles bundles;
    wire::InprocHub hub(1);
    auto transport = hub.transport(0);
    auto& bell = transport->doorbell();
    EngineRank rank(std::move(transport), [&](const engine::Bundle&) { bundles.run(); });
    const auto handle = rank.submit("long");
    bundles.until_begun();
    std::thread caller([&] { handle.wait(); });
    while (bell.asleep(base::Sleepers::behind) == 0) std::this_thread::yield();
    CHECK(bell.asleep(base::Sleepers::for_news) == 0);
    bundles.let_go();
    caller.join();
    CHECK(handle.done());
    CHECK(bell.asleep(base::Sleepers::behind) == 0);
}

TEST_CASE("of threads that wait, one always drives, whoever has driven before") {
    // A thread that nobody wakes stays asleep.
    constexpr base::WaitSettings sleep_for_long{
        .spin = 0us, .sleep_first = 60s, .sleep_limit = 60s};
    wire::InprocHub hub(2, sleep_for_long);
    EngineRank ranks[] = {{hub.transport(0), [](const engine::Bundle&) {}},
                          {hub.transport(1), [](const engine::Bundle&) {}}};
    std::atomic<int> ended{0};
    std::vector<std::thread> callers;
    for (auto& rank : ranks) {
        for (const std::string caller : {"a", "b", "c"}) {
            callers.emplace_back([&rank, &ended, caller] {
                for (int turn = 0; turn < 500; ++turn) {
                    const auto handle = rank.submit(caller + std::to_string(turn));
                    if (turn % 7 == 0) rank.engine().try_between_bundles([] { return true; });
                    if (turn % 5 == 0) std::this_thread::sleep_for(50us);
                    handle.wait();
                    ++ended;
                }
            });
        }
    }
    for (auto& caller : callers) caller.join();
    CHECK(ended == 3000);
}
