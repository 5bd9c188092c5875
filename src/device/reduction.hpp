#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>

namespace guozhuang::device {

/// How the elements of several inputs become one: combined in partials along the tree of
/// guozhuang::Reduce, over their indices, then finished and rounded once.
struct Reduction {
    static constexpr std::size_t most_inputs = 16;  ///< and outputs
    ReduceOp op = ReduceOp::sum;
    DType dtype = DType::f32;
    int contributors = 1;  ///< what an average divides by
    double postscale = 1;  ///< multiplies the result; floating dtypes only
};

}  // namespace guozhuang::device
