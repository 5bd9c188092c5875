#include "backends/host/staging_tuner.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/staged/staged_rounds.hpp"
#include "support/fakes/inproc_ranks.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using backends::StagingTuner;
using backends::Trials;
using guozhuang::test::run_staging_ranks;

namespace {

/// Takes so many turns; gives how many each way had. Costs come one turn late, as they do when
/// ranks tell each other.
std::vector<int> take_turns(Trials& trials, int turns,
                            const std::function<float(std::size_t way, int turn)>& cost) {
    std::vector<int> had(Trials::ways, 0);
    std::optional<std::size_t> before;
    for (int turn = 0; turn < turns; ++turn) {
        const auto way = trials.next();
        trials.advance();
        if (before) trials.record(*before, cost(*before, turn - 1));
        before = way;
        ++had[way];
    }
    return had;
}

/// How many of so many turns are left when a way is tried once in a while.
int all_but_trials(int turns) {
    return turns -
           static_cast<int>(Trials::trial) * (turns / static_cast<int>(Trials::between) + 1);
}

}  // namespace

TEST_CASE("the cheapest way has the turns but for trials, until another is cheaper") {
    Trials trials;
    for (const std::size_t cheapest : {1u, 0u, 1u}) {
        const auto cost = [&](std::size_t way, int) { return way == cheapest ? 1.0F : 2.0F; };
        take_turns(trials, 400, cost);
        CHECK(trials.best() == cheapest);
        CHECK(take_turns(trials, 200, cost)[cheapest] >= all_but_trials(200));
    }
}

TEST_CASE(
    "a way that has become dear is left in a few turns, and found again when it is cheap once "
    "more") {
    Trials trials;
    const auto usual = [](std::size_t way, int) { return way == 0 ? 1.0F : 1.5F; };
    const auto changed = [](std::size_t way, int) { return way == 1 ? 1.5F : 4.0F; };
    take_turns(trials, 100, usual);
    CHECK(trials.best() == 0);
    take_turns(trials, 20, changed);
    CHECK(trials.best() == 1);
    take_turns(trials, 2 * static_cast<int>(Trials::between * Trials::ways), usual);
    CHECK(trials.best() == 0);
}

TEST_CASE("who is late once does not change the choice") {
    Trials trials;
    const auto usual = [](std::size_t way, int) { return way == 1 ? 1.0F : 1.2F; };
    take_turns(trials, 100, usual);
    CHECK(trials.best() == 1);
    CHECK_FALSE(trials.record(1, 900.0F));
    CHECK(trials.best() == 1);
}

TEST_CASE("a way that is dear only in its first turn after another way is found to be cheap") {
    Trials trials;
    take_turns(trials, 100, [](std::size_t way, int) { return way == 1 ? 1.5F : 4.0F; });
    CHECK(trials.best() == 1);
    std::size_t before = 1;
    take_turns(trials, 500, [&](std::size_t way, int) {
        const bool first = std::exchange(before, way) != way;
        return way == 1 ? 1.5F : first ? 4.0F : 1.0F;
    });
    CHECK(trials.best() == 0);
}

TEST_CASE("no way has always the same place among operations that come in turns of two") {
    Trials trials;
    take_turns(trials, 1000, [](std::size_t way, int turn) {
        return (turn % 2 == 0 ? 10.0F : 1.0F) * (way == 0 ? 1.0F : 1.5F);
    });
    CHECK(trials.best() == 0);
}

TEST_CASE(
    "ranks that stage choose alike, whoever is late, and whatever other rounds lie between their "
    "operations") {
    constexpr int ranks = 3, operations = 120;
    std::vector<std::vector<bool>> streamed(ranks);  // by rank, of each operation
    std::vector<std::uint64_t> rounds(ranks);
    run_staging_ranks(ranks, [&](const wire::Group& group, const wire::Staging& staging) {
        const auto self = static_cast<std::size_t>(group.group_rank);
        StagingTuner tuner(group, staging);
        std::mt19937 random(test::seed() + static_cast<unsigned>(self));
        std::vector<std::byte> mine(20'000);
        for (int operation = 0; operation < operations; ++operation) {
            tuner.group().set_streams(false);
            for (int other = operation % 3; other > 0; --other)
                staged::staged_barrier(tuner.group());
            const std::size_t bytes = operation % 7 == 0   ? 100
                                      : operation % 5 == 0 ? 140'000
                                                           : 70'000;
            tuner.run(OperationKind::all_gather, bytes, [&](wire::SharedMemoryGroup& memory) {
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                const std::size_t each = bytes < mine.size() ? bytes / ranks : mine.size();
                memory.put(memory.room(memory.rank(), memory.round()), std::span(mine).first(each));
                staged::staged_barrier(memory);
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                staged::staged_barrier(memory);
            });
            if (bytes > 100) streamed[self].push_back(tuner.group().streams());
        }
        rounds[self] = tuner.group().round();
    });
    for (const auto& each : streamed) CHECK(each == streamed.front());
    CHECK(rounds == std::vector<std::uint64_t>(ranks, 3 * operations + 1));
    for (const bool either : {false, true}) CHECK(std::ranges::count(streamed.front(), either) > 0);
}
