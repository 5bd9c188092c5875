#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <guozhuang/tensor.hpp>
#include <numeric>
#include <string>
#include <torch/types.h>
#include <vector>

namespace guozhuang::torch {

namespace detail {

[[noreturn]] inline void refuse(const std::string& tensor, const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "'" + tensor + "' " + problem, {.tensor = tensor});
}

inline DType dtype_of(const at::Tensor& tensor, const std::string& name) {
    switch (tensor.scalar_type()) {
        case at::kByte: return DType::u8;
        case at::kChar: return DType::i8;
        case at::kShort: return DType::i16;
        case at::kInt: return DType::i32;
        case at::kLong: return DType::i64;
        case at::kBool: return DType::boolean;
        case at::kHalf: return DType::f16;
        case at::kBFloat16: return DType::bf16;
        case at::kFloat: return DType::f32;
        case at::kDouble: return DType::f64;
        default:
            refuse(name, std::string("has elements of type ") +
                             c10::toString(tensor.scalar_type()) +
                             ", which cannot be sent: convert it to a real or integer type");
    }
}

inline Device device_of(const at::Tensor& tensor, const std::string& name) {
    if (tensor.is_cpu()) return {};
    if (tensor.is_cuda()) return {DeviceKind::cuda, static_cast<int>(tensor.get_device())};
    refuse(name,
           "is on the device '" + tensor.device().str() + "': move it to a CPU or a CUDA GPU");
}

/// The extents as they follow each other in memory, the slowest first.
inline Shape extents_in_memory(const at::Tensor& tensor) {
    std::vector<std::int64_t> dimensions(static_cast<std::size_t>(tensor.dim()));
    std::iota(dimensions.begin(), dimensions.end(), 0);
    if (!tensor.is_contiguous())
        std::ranges::stable_sort(dimensions, std::ranges::greater(),
                                 [&](auto dimension) { return tensor.stride(dimension); });
    Shape shape;
    for (const auto dimension : dimensions) shape.push_back(tensor.size(dimension));
    return shape;
}

}  // namespace detail

/// The tensor's memory, as the library takes it. A tensor whose dimensions are permuted
/// (channels_last) is seen with the shape that it has in memory. `name` is what errors call the
/// tensor. Throws Error(invalid_argument) if it is sparse, has gaps, or is of a type or on a device
/// that the library does not know.
inline TensorView view_of(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) detail::refuse(name, "is undefined");
    if (tensor.layout() != at::kStrided) detail::refuse(name, "is sparse: make it to_dense()");
    if (!tensor.is_non_overlapping_and_dense())
        detail::refuse(name, "has gaps, or elements that overlap: make it contiguous()");
    return {tensor.data_ptr(), detail::dtype_of(tensor, name), detail::extents_in_memory(tensor),
            detail::device_of(tensor, name)};
}

}  // namespace guozhuang::torch
