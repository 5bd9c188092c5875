#pragma once

#include <bit>
#include <cstdint>
#include <guozhuang/types.hpp>

// Conversions of single values between 16-bit floats and f32, which define f16 and bf16 in this
// library; the vector kernels agree bit for bit. To f32 is exact. From f32 rounds to nearest, ties
// to even, beyond the largest finite value to infinity; denormals are kept. A NaN keeps its sign
// and the upper bits of its payload, quieted where the instructions of x86 and Arm quiet it. Pure
// functions.

namespace guozhuang::device {

constexpr float to_float(BFloat16 value) noexcept {
    return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

constexpr float to_float(Half value) noexcept {
    const std::uint32_t sign = (value.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = value.bits & 0x7fffu;
    if (magnitude < 0x0400u)
        return std::bit_cast<float>(
            sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
    // The exponent's bias of 15 becomes 127.
    if (magnitude < 0x7c00u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
    const std::uint32_t quiet = magnitude == 0x7c00u ? 0u : 0x00400000u;
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude << 13) | quiet);
}

constexpr BFloat16 to_bfloat16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = nan ? bits | 0x00400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
    return {static_cast<std::uint16_t>(rounded >> 16)};
}

constexpr Half to_half(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t half = 0x7c00u;
    if (magnitude > 0x7f800000u) {  // NaN
        half = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    } else if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5, whose last bit is the unit of a denormal half, rounds it.
        half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
               std::bit_cast<std::uint32_t>(0.5f);
    } else if (magnitude < 0x47800000u) {  // below 2^16; from 65520 on the carry makes it infinity
        half = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace guozhuang::device
