#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

/// A bit for each float, its sign, and one scale, the mean magnitude (F. Seide et al., "1-Bit
/// Stochastic Gradient Descent", 2014; S. P. Karimireddy et al., "Error Feedback Fixes SignSGD",
/// 2019).
namespace guozhuang::codecs::signs {

constexpr std::size_t bytes_of(std::size_t count) noexcept {
    return sizeof(float) + (count + 7) / 8;
}

/// Leaves in `values` what scale and signs do not say.
inline void encode(std::span<float> values, std::span<std::uint8_t> out) {
    double sum = 0;
    for (const float value : values) sum += std::abs(static_cast<double>(value));
    const auto scale = static_cast<float>(sum / static_cast<double>(values.size()));
    std::memcpy(out.data(), &scale, sizeof scale);
    const auto bits = out.subspan(sizeof scale);
    std::memset(bits.data(), 0, bits.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool negative = std::signbit(values[i]);
        if (negative) bits[i / 8] |= static_cast<std::uint8_t>(1u << (i % 8));
        values[i] = std::isfinite(scale) ? values[i] - (negative ? -scale : scale) : 0;
    }
}

/// Adds what a rank's message stands for, times `factor`.
inline void decode(std::span<const std::uint8_t> message, float factor, std::span<float> sum) {
    float scale = 0;
    std::memcpy(&scale, message.data(), sizeof scale);
    scale *= factor;
    const auto bits = message.subspan(sizeof scale);
    for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += (bits[i / 8] >> (i % 8) & 1) != 0 ? -scale : scale;
}

}  // namespace guozhuang::codecs::signs
