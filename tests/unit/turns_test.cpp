// Ranks that take turns: the real engine over the in-process wire, in an order of events that a seed repeats.
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <set>

#include "support/catch.hpp"
#include "support/random_operations.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// What happened in a job, in the order in which it did. No lock: only one rank runs at a time.
using Trace = std::vector<std::string>;

/// Allreduces that every rank submits in an order of its own and waits for in another; the trace says when each was submitted and complete, where.
void traced_allreduces(Session& session, Trace& trace, Numbers& own) {
    constexpr std::size_t operations = 4;
    std::vector<std::vector<float>> numbers(operations, std::vector<float>(100, 1));
    std::vector<Handle> handles;
    const auto first = own.below(operations);
    for (std::size_t i = 0; i < operations; ++i) {
        const auto which = (first + i) % operations;
        const auto name = text_of("rank ", session.rank(), " operation ", which);
        std::shared_ptr<void> end(nullptr, [&trace, name](void*) { trace.push_back(name + " ends"); });
        trace.push_back(name + " begins");
        handles.push_back(allreduce_async(numbers[which], {.name = text_of("traced ", which), .keep_alive = std::move(end)}));
        barrier({.name = text_of("between ", i)});
    }
    for (const auto& handle : handles) handle.wait();
}

/// A job of mixed operations under these turns: what went wrong, and the trace.
std::pair<std::string, Trace> run_in_turns(int ranks, std::uint64_t turns) {
    Trace trace;
    auto problems = problems_among(ranks,
                                   [&](Session& session, Report& report) {
                                       Numbers own(1, static_cast<std::uint64_t>(session.rank()));
                                       for (int round = 0; round < 2; ++round) {
                                           traced_allreduces(session, trace, own);
                                           RandomOperations(session, 99).run(report, 1);
                                           trace.push_back(text_of("rank ", session.rank(), " ends round ", round));
                                       }
                                   },
                                   {.turns = turns});
    return {std::move(problems), std::move(trace)};
}

/// So many seeds at every number of ranks; a quarter of them twice.
void check_turns(std::uint64_t seeds) {
    for (const int ranks : {2, 3, 4}) {
        std::set<Trace> orders;
        for (std::uint64_t turns = 0; turns < seeds; ++turns) {
            const auto [problems, trace] = run_in_turns(ranks, turns);
            INFO("ranks " << ranks << ", turns " << turns);
            CHECK(problems == "");
            if (turns < seeds / 4) CHECK(run_in_turns(ranks, turns).second == trace);
            orders.insert(trace);
        }
        CHECK(orders.size() > seeds / 5);
    }
}

}  // namespace

TEST_CASE("the seed of the turns gives the order of events, and every order gives the right results") {
    check_turns(12);
}

TEST_CASE("many orders of events give the right results", "[.slow]") {
    check_turns(200);
}

TEST_CASE("an exception ends a job of turns for all ranks") {
    for (std::uint64_t turns = 0; turns < 20; ++turns)
        CHECK_THROWS_WITH(run_ranks(3,
                                    [](Session& session) {
                                        if (session.rank() == 1) throw std::runtime_error("mine");
                                        barrier();
                                    },
                                    {.turns = turns}),
                          "mine");
}
