#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <span>

namespace guozhuang::device {

/// The elements of an integer tensor of 8, 16 or 32 bits as i64, and back. Spans of one call hold
/// the same number of elements; narrow_integers() takes values that the dtype can hold. Throws
/// Error(internal) for other dtypes. Thread-safe.
void widen_integers(std::span<std::int64_t> into, DType dtype, std::span<const std::byte> from);
void narrow_integers(DType dtype, std::span<std::byte> into, std::span<const std::int64_t> from);

}  // namespace guozhuang::device
