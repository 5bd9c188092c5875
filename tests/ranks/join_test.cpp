// Ranks that run out of data at different times, as processes.
#include "support/cases/join_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("rank r has r + 1 steps, then joins: a step is the sum of those that still have data") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    for (int step = 0; step <= rank; ++step) {
        int active = 1;
        allreduce(active, {.name = "step"});
        CHECK(active == ranks - step);  // ranks 0 to step - 1 have joined
    }
    CHECK(join() == ranks - 1);  // the last to join
    int all = 1;
    allreduce(all);
    CHECK(all == ranks);
}

// The cases of join_cases.hpp: every operation, set and helper while some ranks have joined, which
// is compared with the oracle over those that have not.
TEST_CASE("joins of processes") {
    for (const auto& body : all_join_cases) CHECK(problems_here(body) == "");
    CHECK(problems_here(uneven_steps_on_a_device) == "");
}
