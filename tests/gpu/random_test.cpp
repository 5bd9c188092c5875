// Random operations, as many as only a GPU has the time for: GPU_RANDOM_ROUNDS, of six or seven
// each.
#include <guozhuang/guozhuang.hpp>
#include <iostream>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang::test;

TEST_CASE("many random operations on a device in random orders", "[.random]") {
    const Trainer trainer;
    RandomTotals totals;
    CHECK(totals.found(problems_here(totals.count(seed(), GPU_RANDOM_ROUNDS))) == "");
    std::cout << totals.text() << std::endl;
}
