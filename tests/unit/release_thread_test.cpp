// What operations on devices keep alive may take long to go: nothing else waits for that.
#include <atomic>
#include <guozhuang/guozhuang.hpp>
#include <thread>
#include <vector>

#include "support/cases/operation_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/tensors/device_views.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// As memory of a device does that is freed, and for which the device must have done all its work.
void release_waits_for_other_ranks(Session& session, Report& report) {
    std::vector<float> numbers(1000, 1), others(1000, 1);
    std::atomic<bool> is_let_go{false}, may_go{false};
    std::shared_ptr<void> owner{numbers.data(), [&](void*) {
                                    while (!may_go) std::this_thread::yield();
                                    is_let_go = true;
                                }};
    auto first = allreduce_async(view_of(numbers, on_fake_device),
                                 {.name = "kept", .keep_alive = std::move(owner)});
    for (int again = 0; again < 20; ++again)
        allreduce(view_of(others, on_fake_device), {.name = "meanwhile", .op = ReduceOp::max});
    report.expect(!is_let_go && !first.done(), "it is complete when it has been let go");
    may_go = true;
    first.wait();
    report.expect(is_let_go, "let go before it is complete");
    report.expect(numbers[0] == static_cast<float>(session.size()), "the sum");
}

}  // namespace

TEST_CASE("operations pass one whose memory takes long to be let go") {
    for (const int ranks : {2, 3})
        CHECK(problems_among(ranks, release_waits_for_other_ranks) == "");
}
