#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>

namespace guozhuang::device {

/// Driver::sum_of_squares for memory of the host, with the same bits: whole aligned elements of a
/// floating dtype. Throws std::bad_alloc: it takes 8 bytes for each lane, 512 KiB at most.
/// Thread-safe.
double sum_of_squares(DType dtype, std::span<const std::byte> memory);

}  // namespace guozhuang::device
