// Ranks that take turns: the real engine over the in-process wire, in an order of events that a
// seed repeats.
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <set>

#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Events of a job, in their order. No lock: only one rank runs at a time.
using Trace = std::vector<std::string>;

/// Allreduces that every rank submits in an order of its own, and waits for in that order; the
/// trace says where and in which order each began and ended.
void traced_allreduces(Session& session, Trace& trace, Numbers& own) {
    constexpr std::size_t operations = 4;
    std::vector<std::vector<float>> numbers(operations, std::vector<float>(100, 1));
    std::vector<Handle> handles;
    const auto first = own.below(operations);
    for (std::size_t i = 0; i < operations; ++i) {
        const auto which = (first + i) % operations;
        const auto name = text_of("rank ", session.rank(), " operation ", which);
        std::shared_ptr<void> end(nullptr,
                                  [&trace, name](void*) { trace.push_back(name + " ends"); });
        trace.push_back(name + " begins");
        handles.push_back(allreduce_async(
            numbers[which], {.name = text_of("traced ", which), .keep_alive = std::move(end)}));
        barrier({.name = text_of("between ", i)});
    }
    for (const auto& handle : handles) handle.wait();
}

/// A job of mixed operations under these turns: what went wrong, and the trace.
std::pair<std::string, Trace> run_in_turns(int ranks, std::uint64_t turns) {
    Trace trace;
    auto problems = problems_among(
        ranks,
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

/// Runs `seeds` seeds at every number of ranks, a quarter of them twice.
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

constexpr std::uint64_t failing_rounds = 3, failing_points = 3 * failing_rounds;

/// Work in rounds, with three points in each at which `maybe_fail` is called.
template <class MaybeFail>
void work_that_may_fail(MaybeFail&& maybe_fail) {
    std::vector<float> numbers(1000, 1);
    for (std::uint64_t round = 0; round < failing_rounds; ++round) {
        maybe_fail();
        const auto begun = allreduce_async(numbers, {.name = "begun"});
        maybe_fail();
        barrier();
        maybe_fail();
        begun.wait();
    }
    barrier({.name = "after all"});
}

/// The error of each rank in a job in which one rank throws "mine" at that point.
std::vector<std::string> ends_where_one_fails(int ranks, int victim, std::uint64_t failing_point,
                                              std::uint64_t turns) {
    std::vector<std::string> ends(static_cast<std::size_t>(ranks));
    const auto job = [&](Session& session) {
        std::uint64_t point = 0;
        try {
            work_that_may_fail([&] {
                if (session.rank() == victim && point++ == failing_point)
                    throw std::runtime_error("mine");
            });
        } catch (const std::exception& error) {
            ends[static_cast<std::size_t>(session.rank())] = error.what();
            throw;
        }
    };
    CHECK_THROWS_WITH(run_ranks(ranks, job, {.turns = turns}), "mine");
    return ends;
}

}  // namespace

TEST_CASE(
    "the seed of the turns gives the order of events, and every order gives the right results") {
    check_turns(12);
}

TEST_CASE("many orders of events give the right results", "[.slow]") {
    check_turns(200);
}

TEST_CASE("a rank that fails anywhere ends a job of turns for all ranks, in every order") {
    const LogCapture log;  // of operations that nobody waits for
    for (const int ranks : {2, 3, 4})
        for (std::uint64_t turns = 0; turns < 60; ++turns) {
            INFO("ranks " << ranks << ", turns " << turns);
            const int victim = static_cast<int>(turns) % ranks;
            const auto ends = ends_where_one_fails(ranks, victim, turns % failing_points, turns);
            for (const auto& end : ends) CHECK_THAT(end, Catch::Matchers::Contains("mine"));
            for (int rank = 0; rank < ranks; ++rank)
                if (rank != victim)
                    CHECK_THAT(ends[static_cast<std::size_t>(rank)],
                               Catch::Matchers::Contains(text_of("rank ", victim)));
        }
}
