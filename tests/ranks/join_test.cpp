// Ranks that run out of data at different times, as processes.
#include "support/cases/join_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("joins of processes") {
    for (const auto& body : all_join_cases) CHECK(problems_here(body) == "");
    CHECK(problems_here(uneven_steps_on_a_device) == "");
}
