#include "backends/host/staging_tuner.hpp"

#include <chrono>
#include <functional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "collectives/direct/staged_rounds.hpp"
#include "support/catch.hpp"
#include "support/inproc_ranks.hpp"

using namespace guozhuang;
using backends::StagingTuner;
using backends::Trials;
using guozhuang::test::run_inproc_ranks;

namespace {

/// As many turns as there are from one beginning of the trials to the next; gives how many turns each way had that were no trials. Costs come one
/// turn late, as they do when ranks tell each other.
std::vector<int> take_turns(Trials& trials, const std::function<float(std::size_t way, int trial)>& cost) {
    std::vector<int> had(Trials::most_ways, 0);
    Trials::Turn tried;
    int trial = 0;
    for (int turn = 0; turn < Trials::turns; ++turn) {
        const auto next = trials.next();
        if (tried.is_trial) trials.record(tried.way, cost(tried.way, trial++));
        tried = next;
        if (!next.is_trial) ++had[next.way];
    }
    return had;
}

constexpr int left = Trials::turns - Trials::cycles * static_cast<int>(Trials::most_ways);

}  // namespace

TEST_CASE("the cheapest way has the turns after the trials, until another is cheaper") {
    Trials trials(Trials::most_ways);
    for (const std::size_t cheapest : {4u, 0u, 5u}) {
        const auto had = take_turns(trials, [&](std::size_t way, int) { return way == cheapest ? 1.0F : 2.0F; });
        CHECK(had[cheapest] >= left - 1);  // the turn after the last trial does not know yet
        CHECK(trials.best() == cheapest);
    }
}

TEST_CASE("who is late in two trials of a way does not spoil it, and an unknown cost is no low one") {
    Trials trials(Trials::most_ways);
    const int cycle = static_cast<int>(Trials::most_ways);
    take_turns(trials, [&](std::size_t way, int trial) { return way == 3 && trial >= cycle ? 0.5F : way == 3 ? 900.0F : 1.0F; });
    CHECK(trials.best() == 3);
    take_turns(trials, [](std::size_t way, int) { return way == 2 ? 7.0F : Trials::unknown; });
    CHECK(trials.best() == 2);
    take_turns(trials, [](std::size_t, int) { return Trials::unknown; });
    CHECK(trials.best() == 2);
}

TEST_CASE("no way has always the same place among operations that come in turns of two") {
    Trials trials(Trials::most_ways);
    const auto cost = [](std::size_t way, int trial) { return (trial % 2 == 0 ? 10.0F : 1.0F) + (way == 0 ? 0.0F : 0.5F); };
    take_turns(trials, cost);
    CHECK(trials.best() == 0);
}

TEST_CASE("ranks that stage choose alike, whoever is late, and take no rounds but those of their operations") {
    constexpr int ranks = 3, operations = 120;
    std::vector<std::vector<std::size_t>> segments(ranks);  // by rank, of each operation
    std::vector<std::uint64_t> rounds(ranks);
    run_inproc_ranks(ranks, [&](wire::Transport& transport) {
        const auto self = static_cast<std::size_t>(transport.rank());
        const std::vector<int> all{0, 1, 2};
        StagingTuner tuner({.transport = transport, .members = all, .position = transport.rank(), .tag = {0, wire::Lane::host_data}},
                           transport.staging(), true);
        std::mt19937 random(test::seed() + static_cast<unsigned>(self));
        std::vector<std::byte> mine(24'000);
        for (int operation = 0; operation < operations; ++operation) {
            const std::size_t bytes = operation % 7 == 0 ? 100 : operation % 5 == 0 ? 140'000 : 70'000;
            tuner.run(engine::Operation::all_gather, bytes, 65'536, [&](wire::MemberPeers& peers, std::size_t segment) {
                segments[self].push_back(segment);
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                const std::size_t each = bytes < mine.size() ? bytes / ranks : mine.size();
                peers.put(peers.stage(peers.rank()), std::span(mine).first(each));
                direct::staged_barrier(peers);
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                direct::staged_barrier(peers);
            });
        }
        rounds[self] = tuner.peers().round();
    });
    for (const auto& each : segments) CHECK(each == segments.front());
    CHECK(rounds == std::vector<std::uint64_t>(ranks, 2 * operations));
    for (const std::size_t segment : {65'536u, 32'768u, 16'384u}) CHECK(std::ranges::count(segments.front(), segment) > 0);
}
