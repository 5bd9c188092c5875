// The stream's row on the timeline of a rank with a GPU.

#include <guozhuang/guozhuang.hpp>

#include "emulation/ranks/trainer.hpp"
#include "support/oracles/stream_slices.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"
#include "support/runner/temporary_directory.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

void record_bundles(Session& session, Report& report) {
    const TemporaryDirectory directory;
    Trainer trainer;
    std::vector<std::shared_ptr<float>> values;
    std::vector<TensorView> views;
    for (const std::size_t count : {4, 1'000'000, 8}) {
        values.push_back(trainer.put_elements(std::vector<float>(count, 1)));
        views.push_back(trainer.view(values.back(), count));
    }
    allreduce(views[0], {.stream = trainer.stream()});  // first launches; not on the timeline
    const Gate gate;
    gate.hold(trainer.native());
    report.expect(start_timeline(directory / "traces"), "it starts");
    std::vector<Handle> handles;
    for (const auto& view : views) {
        handles.push_back(allreduce_async(view, {.stream = trainer.stream()}));
        handles.back().wait(trainer.stream());  // enqueued: so each is a bundle of its own
    }
    std::vector<float> on_host(4, 1);
    for (int i = 0; i < 50; ++i) allreduce(on_host);  // time to be seen too early
    const auto from = nanoseconds_now();
    gate.open();
    for (const auto& handle : handles) handle.wait();
    const auto to = nanoseconds_now();
    stop_timeline();
    const auto problems = problems_of_stream_slices(
        text_of(directory / "traces/rank", session.rank(), ".json"),
        {text_of("stream of cuda ", trainer.device()), {16, 4'000'000, 32}, from, to});
    report.expect(problems.empty(), problems);
}

}  // namespace

TEST_CASE("a stream has a row, with the time from when it begins a bundle until it is done") {
    CHECK(problems_here(record_bundles) == "");
}
