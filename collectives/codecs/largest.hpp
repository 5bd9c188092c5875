#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

/// The k floats of largest magnitude, each with its index (A. F. Aji, K. Heafield, "Sparse
/// Communication for Distributed Gradient Descent", 2017; S. U. Stich et al., "Sparsified SGD with
/// Memory", 2018).
namespace guozhuang::codecs::largest {

struct Entry {
    std::uint32_t index;
    float value;
};

/// How many of `count` elements are sent: at least one.
inline std::size_t number_of(std::size_t count, double density) {
    const auto wanted = static_cast<std::size_t>(std::ceil(static_cast<double>(count) * density));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(count, 1), count);
}

/// Fills `out`, in the order of the indices, and leaves in `values` all that is not sent. Elements
/// that are not finite count as the largest.
inline void encode(std::span<float> values, std::span<Entry> out) {
    const auto magnitude_of = [&](std::uint32_t index) {
        const float magnitude = std::abs(values[index]);
        return std::isnan(magnitude) ? HUGE_VALF : magnitude;
    };
    std::vector<std::uint32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(out.size());
    std::nth_element(order.begin(), end, order.end(), [&](std::uint32_t a, std::uint32_t b) {
        const float of_a = magnitude_of(a), of_b = magnitude_of(b);
        return of_a != of_b ? of_a > of_b : a < b;
    });
    std::sort(order.begin(), end);
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = {order[i], values[order[i]]};
        values[order[i]] = 0;
    }
}

/// Adds what a rank has sent, times `factor`.
inline void decode(std::span<const Entry> message, float factor, std::span<float> sum) {
    for (const auto& [index, value] : message) sum[index] += value * factor;
}

}  // namespace guozhuang::codecs::largest
