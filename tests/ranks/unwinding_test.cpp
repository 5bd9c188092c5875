// Memory whose owner goes while operations use it: ranks are processes.
#include "support/cases/unwinding_cases.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("owners of memory that go while operations of processes are pending") {
    for (const auto& body : all_unwinding_cases) CHECK(problems_here(body) == "");
}
