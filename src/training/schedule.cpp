#include <fmt/format.h>

#include <cmath>
#include <guozhuang/error.hpp>
#include <guozhuang/schedule.hpp>
#include <numbers>

namespace guozhuang {
namespace {

void require_rate(const char* name, double rate) {
    if (!std::isfinite(rate) || rate < 0)
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("Schedule: {} is {}; it must be finite, and 0 at least", name, rate));
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
    require_rate("rate", options.rate);
    require_rate("first_rate", options.first_rate);
    if (options.warmup_steps > options.steps)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("Schedule: warmup_steps is {}, but steps is {}",
                                options.warmup_steps, options.steps));
}

double Schedule::rate(std::size_t step) const noexcept {
    const auto& [rate, steps, warmup_steps, first_rate, decay] = options_;
    const auto share = [](std::size_t part, std::size_t whole) {
        return static_cast<double>(part) / static_cast<double>(whole);
    };
    if (step < warmup_steps) return std::lerp(first_rate, rate, share(step, warmup_steps));
    if (decay == Decay::none) return rate;
    if (step >= steps) return 0;
    const auto left = share(steps - step, steps - warmup_steps);
    if (decay == Decay::linear) return rate * left;
    return rate * (1 - std::cos(std::numbers::pi * left)) / 2;
}

}  // namespace guozhuang
