// Arenas of processes.
#include "support/cases/arena_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("arenas of processes") {
    for (const auto& body : all_arena_cases) CHECK(problems_here(body) == "");
}

TEST_CASE("arenas and children") {
    CHECK(problems_here(children_apart) == "");
}
