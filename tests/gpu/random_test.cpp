// Random operations, as many as only a GPU has the time for: for GPU_RANDOM_SECONDS (10).
#include <chrono>
#include <cstdlib>
#include <guozhuang/guozhuang.hpp>
#include <iostream>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang::test;
using Clock = std::chrono::steady_clock;

namespace {

/// Whether the time of rank 0 is over.
bool is_over(Clock::time_point end) {
    float over = Clock::now() >= end ? 1 : 0;
    guozhuang::broadcast(guozhuang::TensorView(&over, guozhuang::DType::f32, {1}), 0);
    return over != 0;
}

}  // namespace

TEST_CASE("many random operations on a device in random orders", "[.random]") {
    constexpr int rounds_between = 5;
    const Trainer trainer;
    const auto* seconds = std::getenv("GPU_RANDOM_SECONDS");
    const auto end = Clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 10);
    RandomTotals totals;
    for (auto from = seed(); !is_over(end); ++from)
        CHECK(totals.found(problems_here(totals.count(from, rounds_between))) == "");
    std::cout << totals.text() << std::endl;
}
