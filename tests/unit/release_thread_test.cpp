// Owners that device operations keep alive may take long to release: other operations do not wait.
#include <atomic>
#include <guozhuang/guozhuang.hpp>
#include <string>
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

/// On the thread that lets go, on one rank alone: had it been submitted, the name would be taken.
void blocking_call_is_refused(Session& session, Report& report) {
    std::vector<float> numbers(1000, 1), others(1000, 1);
    const auto view = view_of(others, on_fake_device);
    std::string said = "nothing";
    const auto call = [&](void*) {
        try {
            allreduce(view, {.name = "refused", .session = &session});
        } catch (const Error& error) {
            said = error.what();
        }
    };
    AllreduceOptions options{.name = "kept"};
    if (session.rank() == 0) options.keep_alive = {nullptr, call};
    const auto kept = allreduce_async(view_of(numbers, on_fake_device), options);
    options.keep_alive = {};  // now the operation has the last owner
    kept.wait();
    if (session.rank() > 0) barrier();
    const auto handle = allreduce_async(view, {.name = "refused"});
    if (session.rank() == 0) barrier();
    handle.wait();
    const bool is_refused =
        said.starts_with("allreduce 'refused' cannot be waited for here: the thread that lets go");
    report.expect(is_refused == (session.rank() == 0), said);
    report.expect(others[0] == static_cast<float>(session.size()), "the sum");
}

}  // namespace

TEST_CASE("operations pass one whose memory takes long to be let go") {
    for (const int ranks : {2, 3})
        CHECK(problems_among(ranks, release_waits_for_other_ranks) == "");
}

TEST_CASE("a blocking call on the thread that lets go is refused before it is submitted") {
    CHECK(problems_among(2, blocking_call_is_refused) == "");
}
