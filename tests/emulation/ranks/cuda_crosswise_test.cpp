// Process sets that overlap, whose ranks use them in different orders.

#include <algorithm>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <string>
#include <vector>

#include "emulation/ranks/trainer.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Neighbours share sets of two, all round; each rank uses its two sets, and the whole job, in an
/// order of its own. The tensors are there before, so that nothing but the sets is waited for.
void sets_crosswise(Session& session, Report& report, int rounds) {
    constexpr std::size_t count = 3000;
    Trainer trainer;
    std::vector<ProcessSet> sets{ProcessSet(&session)};
    for (int rank = 0; rank < session.size() && session.size() > 1; ++rank)
        sets.push_back(ProcessSet::create({rank, (rank + 1) % session.size()}, &session));
    std::erase_if(sets, [&](const ProcessSet& set) { return !set.contains(session.rank()); });
    std::vector<std::shared_ptr<float>> tensors;
    for (std::size_t i = 0; i < sets.size(); ++i)
        tensors.push_back(trainer.put_elements(std::vector<float>(count, 1)));
    for (int round = 0; round < rounds; ++round) {
        std::vector<Handle> handles;
        for (std::size_t i = 0; i < sets.size(); ++i) {
            const auto which = (i + static_cast<std::size_t>(session.rank() + round)) % sets.size();
            handles.push_back(allreduce_async(trainer.view(tensors[which], count),
                                              {.name = "crosswise",
                                               .op = ReduceOp::sum,
                                               .postscale = 1.0 / sets[which].size(),
                                               .stream = trainer.stream(),
                                               .process_set = sets[which]}));
        }
        for (const auto& handle : handles) handle.wait();
    }
    for (const auto& tensor : tensors)
        report.expect(trainer.elements(tensor, count) == std::vector<float>(count, 1),
                      "the averages of ones");
}

std::string problems_crosswise(int rounds) {
    return problems_here(
        [rounds](Session& session, Report& report) { sets_crosswise(session, report, rounds); });
}

}  // namespace

TEST_CASE("process sets that overlap are used crosswise a thousand times", "[crosswise]") {
    CHECK(problems_crosswise(1000) == "");
}

// Where ranks are processes that take turns on a GPU, a round may take many of them.
TEST_CASE("process sets that overlap are used crosswise a hundred times", "[turns]") {
    CHECK(problems_crosswise(100) == "");
}
