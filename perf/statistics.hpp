#pragma once

#include <chrono>
#include <vector>

namespace guozhuang::perf {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The smallest sample that at least a share q of the samples does not exceed; of an even number
/// the lower median. Not for no samples.
double quantile(std::vector<double> samples, double q);

}  // namespace guozhuang::perf
