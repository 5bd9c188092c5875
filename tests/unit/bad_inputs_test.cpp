// Requests that some ranks get wrong, drawn at random, on ranks that are threads.
#include "support/cases/bad_inputs.hpp"

#include <iostream>

#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("whatever some ranks get wrong is named, and the next operation is right") {
    Tally tally;
    for (const auto& [ranks, inputs] : {std::pair(2, 100), {3, 100}, {4, 100}, {18, 10}})
        CHECK(problems_among(ranks, bad_inputs(seed(), inputs, tally)) == "");  // 18: a deeper tree
    CHECK(tally.text() == "bad inputs: 310, hangs: 0, wrong results: 0, unnamed culprits: 0");
}

TEST_CASE("very many things that some ranks get wrong", "[.slow]") {
    Tally tally;
    for (const int ranks : {2, 3, 4, 7})
        CHECK(problems_among(ranks, bad_inputs(seed(), 250, tally)) == "");
    CHECK(tally.inputs == 1000);
    std::cout << tally.text() << std::endl;
}
