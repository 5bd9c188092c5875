#pragma once

#include <chrono>
#include <vector>

namespace guozhuang::perf {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The smallest sample that at least a share q of the samples does not exceed; for q = 0.5 and an
/// even number of samples the lower of the middle two. There must be a sample.
double quantile(std::vector<double> samples, double q);
/// There must be a sample.
double mean(const std::vector<double>& samples);

}  // namespace guozhuang::perf
