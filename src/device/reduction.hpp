#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>

namespace guozhuang::device {

/// How elements of several inputs are reduced to one: combined as partials along the tree of
/// guozhuang::Reduce, over the inputs' indices, then finished and rounded once.
struct Reduction {
    static constexpr std::size_t most_inputs = 16;  ///< and outputs
    ReduceOp op = ReduceOp::sum;
    DType dtype = DType::f32;
    int contributors = 1;  ///< what an average divides by
    double postscale = 1;  ///< multiplies the result; floating dtypes only
};

/// The last step of a reduction: x / divisor, then times scale, in the partial's type. Integers are
/// divided exactly, truncated toward zero, and never scaled.
struct Finish {
    int divisor = 1;
    double scale = 1;
    constexpr bool is_identity() const noexcept { return divisor == 1 && scale == 1; }
};

/// Whether the sum of an average may need more bits than the dtype has; then it is summed as i64.
/// Averages of i64 and u64 divide the wrapped sum.
constexpr bool averages_in_i64(ReduceOp op, DType dtype) noexcept {
    return op == ReduceOp::average && !is_floating(dtype) && dtype != DType::boolean &&
           size_of(dtype) < size_of(DType::i64);
}

}  // namespace guozhuang::device
