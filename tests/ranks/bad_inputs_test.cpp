// Requests that some ranks get wrong, drawn at random, on ranks that are processes.
#include "support/cases/bad_inputs.hpp"

#include <iostream>

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("whatever some ranks get wrong is named, and the next operation is right") {
    Tally tally;
    CHECK(problems_here(bad_inputs(seed(), 100, tally)) == "");
    CHECK(tally.faults() == 0);
}

TEST_CASE("very many things that some ranks get wrong", "[.slow]") {
    Tally tally;
    CHECK(problems_here(bad_inputs(seed(), 250, tally)) == "");
    std::cout << tally.text() << std::endl;  // of rank 0 only: the others' is not shown
}
