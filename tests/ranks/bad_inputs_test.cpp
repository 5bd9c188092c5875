// Requests that some ranks get wrong, drawn at random, on ranks that are processes.
#include "support/cases/bad_inputs.hpp"

#include <iostream>

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("one rank names another root: all are told, and the next sum is right") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<int> numbers{rank};
    const auto error =
        error_of([&] { broadcast(numbers, rank == ranks - 1 ? ranks - 1 : 0, {.name = "state"}); });
    CHECK(error.has_value() == (ranks > 1));
    if (error) CHECK(error->code() == ErrorCode::mismatch);
    CHECK(numbers[0] == rank);
    int one = 1;
    allreduce(one);
    CHECK(one == ranks);
}

// 100 random requests by one seed, each of which some ranks get wrong in one way (enum Wrong in
// bad_input_source.hpp). Counted as a fault: no error, another than docs/errors.md says, one that
// does not name the rank to blame, and a next operation that is wrong.
TEST_CASE("whatever some ranks get wrong is named, and the next operation is right") {
    if (Session::current().size() < 2)
        GUOZHUANG_SKIP("some ranks must be right and some wrong: two at least");
    Tally tally;
    CHECK(problems_here(bad_inputs(seed(), 100, tally)) == "");
    CHECK(tally.faults() == 0);
}

TEST_CASE("very many things that some ranks get wrong", "[.slow]") {
    if (Session::current().size() < 2)
        GUOZHUANG_SKIP("some ranks must be right and some wrong: two at least");
    Tally tally;
    CHECK(problems_here(bad_inputs(seed(), 250, tally)) == "");
    std::cout << tally.text() << std::endl;  // of rank 0 only: the others' is not shown
}
