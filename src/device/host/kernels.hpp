#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>

#include "device/reduction.hpp"

// The arithmetic of host reductions: vectorised loops, chosen at run time for this processor.
// Elements and partials are those of collectives/concepts/reduce.hpp. Pure, thread-safe; the
// kernels never throw. Spans of one call hold the same number of elements and need no alignment.
// `into` may be one of the operands (the same span); it must not overlap them in any other way.
//
// Integer sums and products wrap modulo 2^bits, as does the sum of an average: callers widen
// integers first (averages_in_i64). Floating min and max propagate NaN from either side and put -0
// below +0, so the order of the operands does not matter. A sum or product of two NaNs returns
// either of them.

namespace guozhuang::device {

using CombineKernel = void (*)(std::span<std::byte> into, std::span<const std::byte> left,
                               std::span<const std::byte> right);
using ConvertKernel = void (*)(std::span<std::byte> into, std::span<const std::byte> from);
using FinishKernel = void (*)(std::span<std::byte> into, std::span<const std::byte> from,
                              const Finish& finish);

using CombineAndFinishKernel = void (*)(std::span<std::byte> into, std::span<const std::byte> left,
                                        std::span<const std::byte> right, const Finish& finish);

/// The loops of one dtype and op.
struct Kernels {
    CombineKernel combine;           ///< elements = elements (op) elements
    CombineKernel combine_partials;  ///< partials = partials (op) partials
    CombineKernel combine_wide;      ///< partials = elements (op) elements
    /// elements = finish(elements (op) elements), computed in partials and rounded once
    CombineAndFinishKernel combine_and_finish;
    /// elements = finish(partials (op) partials), rounded once
    CombineAndFinishKernel combine_partials_and_finish;
    ConvertKernel widen;  ///< partials = elements
    FinishKernel narrow;  ///< elements = finish(partials), rounded once
    FinishKernel finish;  ///< elements = finish(elements)
};

/// Bytes of one partial: 4 for f16 and bf16, otherwise the element's.
constexpr std::size_t partial_size_of(DType dtype) noexcept {
    return dtype == DType::f16 || dtype == DType::bf16 ? size_of(DType::f32) : size_of(dtype);
}

/// The best kernels that this processor can run; average combines as sum does. Throws
/// Error(invalid_argument) for an op that is not defined on the dtype: sum, average and product of
/// boolean; and for adasum, which is not a loop over elements.
Kernels kernels_for(DType dtype, ReduceOp op);

/// into = Adasum(left, right) = (1 - l.r / 2|l|^2) l + (1 - l.r / 2|r|^2) r, on the partials of one
/// whole tensor, aligned to their size. If one side is zero, the result is the other. Dot products
/// are added up in f64 and in the same order on every processor, so all ranks get the same bits.
/// (f64 beyond about 1e154, whose squares overflow, gives NaN.) Throws Error(invalid_argument) for
/// integers and boolean.
CombineKernel adasum_for(DType dtype);

}  // namespace guozhuang::device
