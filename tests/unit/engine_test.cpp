// The engine with a backend of the test's: who drives.
#include "engine/engine.hpp"

#include <atomic>
#include <future>
#include <thread>

#include "support/catch.hpp"
#include "support/engine_rank.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Bundles that last until they are let go, unless it is the test's own thread that was made to run them: that is counted, and not waited for.
class HeldBundles {
public:
    ~HeldBundles() { let_go(); }
    void let_go() {
        if (!std::exchange(free_, true)) gate_.set_value();
    }
    void run() {
        if (std::this_thread::get_id() == caller_)
            ++run_by_caller_;
        else
            open_.wait();
    }
    int run_by_caller() const { return run_by_caller_; }

private:
    const std::thread::id caller_ = std::this_thread::get_id();
    std::atomic<int> run_by_caller_{0};
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

TEST_CASE("a wait with a limit returns while the bundle goes on") {
    HeldBundles bundles;
    wire::InprocHub hub(1);
    EngineRank rank(hub.transport(0), [&](const engine::Bundle&) { bundles.run(); });
    const auto handle = rank.submit("long");
    for (const auto limit : {0us, 1us, 2000us}) CHECK_FALSE(handle.wait_for(limit));
    bundles.let_go();
    CHECK(handle.wait_for(20s));
    CHECK(bundles.run_by_caller() == 0);
}

TEST_CASE("without a thread of its own an engine is driven by whoever asks") {
    HeldBundles bundles;
    wire::InprocHub hub(1);
    EngineRank rank(
        hub.transport(0), [&](const engine::Bundle&) { bundles.run(); }, false);
    const auto asked = rank.submit("asked");
    while (!asked.done()) std::this_thread::yield();
    CHECK(rank.submit("waited for").wait_for(20s));
    CHECK(bundles.run_by_caller() == 2);
}
