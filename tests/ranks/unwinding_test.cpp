// Memory whose owner goes while operations use it: ranks are processes.
#include "support/cases/unwinding_cases.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("rank 0's arena goes while its sum is pending: the other ranks' sums are right") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    Handle handle;
    {
        GradientArena arena(1 << 16);
        std::pmr::vector<float> numbers({1, 2, 3}, &arena);
        handle = allreduce_async(std::span(numbers));
        if (rank != 0) {
            handle.wait();
            const auto p = static_cast<float>(ranks);
            CHECK(numbers == std::pmr::vector<float>{p, 2 * p, 3 * p});
        }
    }
    CHECK_NOTHROW(handle.wait());  // of rank 0 too: it has contributed
}

// The cases of unwinding_cases.hpp: exceptions, arenas and registrations that end in the middle.
TEST_CASE("owners of memory that go while operations of processes are pending") {
    for (const auto& body : all_unwinding_cases) CHECK(problems_here(body) == "");
}
