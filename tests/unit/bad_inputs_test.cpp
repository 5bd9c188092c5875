// Requests that some ranks get wrong, drawn at random, on ranks that are threads.
#include "support/cases/bad_inputs.hpp"

#include <iostream>

#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("whatever some ranks get wrong is named, and the next operation is right") {
    Tally tally;
    for (const int ranks : {2, 3, 4})
        CHECK(problems_among(ranks, bad_inputs(seed(), 100, tally)) == "");
    CHECK(tally.text() == "bad inputs: 300, hangs: 0, wrong results: 0, unnamed culprits: 0");
}

TEST_CASE("very many things that some ranks get wrong", "[.slow]") {
    Tally tally;
    for (const int ranks : {2, 3, 4, 7})
        CHECK(problems_among(ranks, bad_inputs(seed(), 250, tally)) == "");
    CHECK(tally.inputs == 1000);
    std::cout << tally.text() << std::endl;
}
