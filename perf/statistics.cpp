#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace guozhuang::perf {

double quantile(std::vector<double> samples, double q) {
    const double position = std::ceil(q * static_cast<double>(samples.size()));
    const auto index = static_cast<std::ptrdiff_t>(std::max(position, 1.0)) - 1;
    std::nth_element(samples.begin(), samples.begin() + index, samples.end());
    return samples[static_cast<std::size_t>(index)];
}

double mean(const std::vector<double>& samples) {
    return std::reduce(samples.begin(), samples.end()) / static_cast<double>(samples.size());
}

}  // namespace guozhuang::perf
