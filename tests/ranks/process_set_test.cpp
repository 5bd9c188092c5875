// Process sets, on ranks that are processes.
#include "support/cases/process_set_cases.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("process sets of processes") {
    for (const auto& body : all_process_set_cases) CHECK(problems_here(body) == "");
}

TEST_CASE("random operations in sets, in random orders") {
    CHECK(problems_here(random_operations_in_sets(seed(), 10)) == "");
}

TEST_CASE("sets come and go") {
    const auto threads = threads_of_process();
    CHECK(problems_here(sets_come_and_go(200)) == "");
    CHECK(threads_of_process() == threads);
}
