#pragma once

#include <guozhuang/export.hpp>
#include <guozhuang/tensor.hpp>

namespace guozhuang {

/// to = from, element by element, in the dtype of `to`: f16 and bf16 become f32 exactly; f32
/// becomes either, rounded to nearest, ties to even, beyond the largest finite value to infinity;
/// equal dtypes are copied. Vectorised, with the same bits on every processor. Local; any thread.
/// The tensors must not overlap. Throws Error(invalid_argument) for other pairs of dtypes, for
/// different numbers of elements, for strides and for memory on a device.
GUOZHUANG_API void convert(const ConstTensorView& from, const TensorView& to);

}  // namespace guozhuang
