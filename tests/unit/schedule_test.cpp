// Learning rates by step.
#include <cmath>
#include <guozhuang/error.hpp>
#include <guozhuang/schedule.hpp>
#include <limits>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("warm-up goes in a straight line, and its ends are exact") {
    const Schedule schedule(
        {.rate = 0.8, .steps = 450, .warmup_steps = 25, .first_rate = 0.1, .decay = Decay::none});
    CHECK(schedule.rate(0) == 0.1);
    CHECK(schedule.rate(25) == 0.8);
    CHECK(schedule.rate(449) == 0.8);
    CHECK(schedule.rate(1000000) == 0.8);
    for (std::size_t step = 0; step < 25; ++step) {
        CHECK(schedule.rate(step) < schedule.rate(step + 1));
        CHECK(std::abs(schedule.rate(step) - (0.1 + 0.7 * static_cast<double>(step) / 25)) < 1e-15);
    }
    // A first rate above the other goes down.
    const Schedule down({.rate = 0.1, .steps = 3, .warmup_steps = 2, .first_rate = 0.3});
    CHECK(std::abs(down.rate(1) - 0.2) < 1e-15);
}

TEST_CASE("decays fall from the rate to exactly 0") {
    for (const auto decay : {Decay::linear, Decay::cosine})
        for (const std::size_t warmup : {0u, 1u, 10u}) {
            CAPTURE(static_cast<int>(decay), warmup);
            const Schedule schedule(
                {.rate = 0.3, .steps = 110, .warmup_steps = warmup, .decay = decay});
            CHECK(schedule.rate(warmup) == 0.3);
            for (std::size_t step = warmup; step < 110; ++step)
                CHECK(schedule.rate(step) > schedule.rate(step + 1));
            CHECK(schedule.rate(109) > 0);
            for (const std::size_t step : {std::size_t{110}, std::size_t{111}, ~std::size_t{0}})
                CHECK(schedule.rate(step) == 0);
            const auto half = warmup + (110 - warmup) / 2;
            if ((110 - warmup) % 2 == 0) CHECK(std::abs(schedule.rate(half) - 0.15) < 1e-15);
        }
    // A quarter of the way cosine has fallen by (1 - cos(pi / 4)) / 2, less than linear.
    const Schedule cosine({.rate = 1, .steps = 100, .decay = Decay::cosine});
    CHECK(std::abs(cosine.rate(25) - (1 + std::sqrt(0.5)) / 2) < 1e-15);
}

TEST_CASE("schedules of no steps, and of warm-up only") {
    CHECK(Schedule({.rate = 0.3, .steps = 0}).rate(0) == 0);
    CHECK(Schedule({.rate = 0.3, .steps = 0, .decay = Decay::none}).rate(0) == 0.3);
    const Schedule warmup({.rate = 0.3, .steps = 2, .warmup_steps = 2});
    CHECK(warmup.rate(0) == 0);
    CHECK(warmup.rate(1) == 0.15);
    CHECK(warmup.rate(2) == 0);
}

TEST_CASE("schedules that make no sense are refused") {
    const auto text_of = [](const ScheduleOptions& options) -> std::string {
        const auto error = error_of([&] { Schedule{options}; });
        return error && error->code() == ErrorCode::invalid_argument ? error->what() : "none";
    };
    CHECK(text_of({.rate = 1, .steps = 3, .warmup_steps = 4}) ==
          "Schedule: warmup_steps is 4, but steps is 3");
    CHECK(text_of({.rate = -1, .steps = 3}) ==
          "Schedule: rate is -1; it must be finite, and 0 at least");
    const auto without_end = std::numeric_limits<double>::infinity();
    CHECK(text_of({.rate = 1, .steps = 3, .first_rate = without_end}).find("first_rate is inf") !=
          std::string::npos);
}
