#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

/// Floats as small integers whose sum over the ranks is exact: every rank divides a block by the
/// same step, so the sum of the integers is the integer of the sum (K. Mishchenko et al., "IntSGD:
/// Adaptive Floatless Compression of Stochastic Gradients", 2022; there one step for everything,
/// and random rounding). Integers of the ranks must not overflow when they are added, so each is at
/// most 127 / ranks.
namespace guozhuang::codecs::integers {

inline constexpr std::size_t block = 256;  ///< elements with the same step
inline constexpr int largest = 127;

constexpr std::size_t blocks_of(std::size_t count) noexcept {
    return (count + block - 1) / block;
}

/// The largest magnitude of each block; infinity if an element is not finite.
inline void magnitudes(std::span<const float> values, std::span<float> of_blocks) {
    for (std::size_t i = 0; i < of_blocks.size(); ++i) {
        const auto in_block = values.subspan(i * block, std::min(block, values.size() - i * block));
        float magnitude = 0;
        bool finite = true;
        for (const float value : in_block) {
            finite &= std::isfinite(value);
            magnitude = std::max(magnitude, std::abs(value));
        }
        of_blocks[i] = finite ? magnitude : std::numeric_limits<float>::infinity();
    }
}

/// `magnitudes`: the largest of all ranks. Leaves in `values` what the integers do not say.
inline void encode(std::span<float> values, std::span<const float> magnitudes, int levels,
                   std::span<std::int8_t> out) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const float step = magnitudes[i / block] / static_cast<float>(levels);
        const bool zero = !(step > 0) || !std::isfinite(step);
        const auto most = static_cast<float>(levels);  // subnormal steps are not exact
        const float integer = zero ? 0 : std::clamp(std::nearbyint(values[i] / step), -most, most);
        out[i] = static_cast<std::int8_t>(integer);
        values[i] = std::isfinite(step) ? values[i] - integer * step : 0;
    }
}

/// The values that the sum of all ranks' integers stands for, times `factor`. NaN where an element
/// of the block was not finite on some rank.
inline void decode(std::span<const std::int8_t> sums, std::span<const float> magnitudes, int levels,
                   float factor, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
        const float step = magnitudes[i / block] / static_cast<float>(levels);
        out[i] = static_cast<float>(sums[i]) * step * factor;
    }
}

}  // namespace guozhuang::codecs::integers
