// Process sets, on ranks that are processes.
#include "support/cases/process_set_cases.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("the even ranks add up among themselves, and the odd ones do") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<int> even, odd;
    for (int each = 0; each < ranks; ++each) (each % 2 == 0 ? even : odd).push_back(each);
    if (odd.empty()) odd = even;  // a set is of one rank at least
    auto evens = ProcessSet::create(even), odds = ProcessSet::create(odd);
    const auto& own = rank % 2 == 0 ? evens : odds;
    CHECK(own.rank() == rank / 2);
    std::vector<int> numbers{rank, 1};
    allreduce(numbers, {.name = "own", .process_set = own});
    const int count = rank % 2 == 0 ? (ranks + 1) / 2 : ranks / 2;
    const int sum =
        rank % 2 == 0 ? count * (count - 1) : count * count;  // 0 + 2 + ..., 1 + 3 + ...
    CHECK(numbers == std::vector<int>{sum, count});
    odds.remove();
    evens.remove();
}

// The cases of process_set_cases.hpp: seven ways to choose the ranks of a set; every operation,
// error, removal and training in sets. Results are compared with the oracle over the set's ranks.
TEST_CASE("process sets of processes") {
    for (const auto& body : all_process_set_cases) CHECK(problems_here(body) == "");
}

// 10 rounds of random operations in all sets and the whole job at once, each rank in its own order.
TEST_CASE("random operations in sets, in random orders") {
    CHECK(problems_here(random_operations_in_sets(seed(), 10)) == "");
}

TEST_CASE("sets come and go") {
    const auto threads = threads_of_process();
    CHECK(problems_here(sets_come_and_go(200)) == "");
    CHECK(threads_of_process() == threads);
}
