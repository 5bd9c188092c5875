#pragma once

#include <algorithm>
#include <cstdint>
#include <guozhuang/tensor.hpp>

/// Requirements on a caller's tensors.
namespace guozhuang::api {

/// Row-major without gaps; the stride of a dimension of one element does not matter.
inline bool is_contiguous(const TensorView& tensor) {
    if (tensor.strides.empty() || tensor.count() == 0) return true;
    if (tensor.strides.size() != tensor.shape.size()) return false;
    std::int64_t expected = 1;
    for (std::size_t i = tensor.shape.size(); i-- > 0;) {
        if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
        expected *= tensor.shape[i];
    }
    return true;
}

/// Whether the tensor's bytes, and those of each of its rows, can be counted in 64 bits. A
/// dimension that is 0 on this rank counts as 1, since it may differ on other ranks.
inline bool is_countable(const TensorView& tensor) {
    auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    return std::ranges::none_of(tensor.shape, [&](auto extent) {
        return __builtin_mul_overflow(bytes, std::max(extent, std::int64_t{1}), &bytes);
    });
}

/// Device kernels read whole elements.
inline bool is_aligned(const TensorView& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) == 0;
}

}  // namespace guozhuang::api
