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

/// Who of the sets that neighbours share has joined them.
enum class Joined { nobody, second };

/// Neighbours share sets of two, all round; each rank uses its two sets, and the whole job, in an
/// order of its own, or one of the two where the second of the neighbours has joined. The tensors
/// are there before, so that nothing but the sets is waited for.
void sets_crosswise(Session& session, Report& report, int rounds, Joined joined) {
    constexpr std::size_t count = 3000;
    Trainer trainer;
    std::vector<ProcessSet> sets{ProcessSet(&session)};
    std::vector<JoinHandle> joins;
    for (int rank = 0; rank < session.size() && session.size() > 1; ++rank) {
        const int second = (rank + 1) % session.size();
        auto set = ProcessSet::create({rank, second}, &session);
        if (joined == Joined::second && session.rank() == second)
            joins.push_back(join_async({.process_set = set}));
        else if (set.contains(session.rank()))
            sets.push_back(set);
    }
    std::vector<std::shared_ptr<float>> tensors;
    for (std::size_t i = 0; i < sets.size(); ++i)
        tensors.push_back(trainer.put_elements(std::vector<float>(count, 1)));
    for (int round = 0; round < rounds; ++round) {
        std::vector<Handle> handles;
        for (std::size_t i = 0; i < sets.size(); ++i) {
            const auto which = (i + static_cast<std::size_t>(session.rank() + round)) % sets.size();
            handles.push_back(
                allreduce_async(trainer.view(tensors[which], count), {.name = "crosswise",
                                                                      .op = ReduceOp::average,
                                                                      .stream = trainer.stream(),
                                                                      .process_set = sets[which]}));
        }
        for (const auto& handle : handles) handle.wait();
    }
    for (std::size_t i = 1; i < sets.size() && joined == Joined::second; ++i)
        joins.push_back(join_async({.process_set = sets[i]}));
    for (const auto& each : joins) each.wait();
    for (const auto& tensor : tensors)
        report.expect(trainer.elements(tensor, count) == std::vector<float>(count, 1),
                      "the averages of ones");
}

std::string problems_crosswise(int rounds, Joined joined = Joined::nobody) {
    return problems_here(
        [=](Session& session, Report& report) { sets_crosswise(session, report, rounds, joined); });
}

}  // namespace

TEST_CASE("process sets that overlap are used crosswise hundreds of times", "[crosswise]") {
    CHECK(problems_crosswise(400) == "");
}

TEST_CASE("process sets that overlap are used crosswise when ranks have joined", "[crosswise]") {
    CHECK(problems_crosswise(150, Joined::second) == "");
}

// Where ranks are processes that take turns on a GPU, a round may take many of them.
TEST_CASE("process sets that overlap are used crosswise a hundred times", "[turns]") {
    CHECK(problems_crosswise(100) == "");
}
