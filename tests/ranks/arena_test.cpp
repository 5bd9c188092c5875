// Arenas of processes.
#include "support/cases/arena_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("a sum of tensors in an arena is the sum") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    GradientArena arena(1 << 16);
    std::pmr::vector<float> gradient({1, 2, static_cast<float>(rank)}, &arena);
    allreduce(std::span(gradient));
    const auto p = static_cast<float>(ranks);
    CHECK(gradient == std::pmr::vector<float>{p, 2 * p, p * (p - 1) / 2});  // 0 + 1 + ...
}

// The cases of arena_cases.hpp: every operation on tensors of every kind of memory, compared with
// the oracle, and whether they were reduced in place.
TEST_CASE("arenas of processes") {
    for (const auto& body : all_arena_cases) CHECK(problems_here(body) == "");
}

TEST_CASE("arenas and children") {
    CHECK(problems_here(children_apart) == "");
}
