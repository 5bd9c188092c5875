#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>

namespace guozhuang::device {

/// Fills host memory with the neutral element: -0 for floating sums, 0 for integer sums, 1 for
/// products, the largest value (infinity) for min, the lowest for max. x op neutral = x, bit for
/// bit. Thread-safe.
void fill_neutral(DType dtype, ReduceOp op, std::span<std::byte> elements) noexcept;

}  // namespace guozhuang::device
