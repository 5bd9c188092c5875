#pragma once

#include <cstdint>
#include <guozhuang/error.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <guozhuang/torch/current_stream.hpp>
#include <optional>
#include <string>
#include <torch/types.h>

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

/// Refuses a tensor whose elements do not fill one piece of memory, each once.
inline void require_dense(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) refuse(name, "is undefined");
    if (tensor.layout() != at::kStrided) refuse(name, "is sparse: make it to_dense()");
    if (!tensor.is_non_overlapping_and_dense())
        refuse(name, "has gaps, or elements that overlap: make it contiguous()");
}

/// The tensor's memory, whose elements may lie in another order than that of its dimensions
/// (channels_last): then it is seen without dimensions of its own.
inline TensorView memory_of(const at::Tensor& tensor, const std::string& name) {
    require_dense(tensor, name);
    if (tensor.is_neg())
        refuse(name, "is negated when it is read, not in memory: make it resolve_neg()");
    const auto shape = tensor.is_contiguous() ? tensor.sizes().vec()
                                              : Shape{static_cast<std::int64_t>(tensor.numel())};
    return {tensor.data_ptr(), dtype_of(tensor, name), shape, device_of(tensor, name)};
}

/// The chosen stream, or else PyTorch's current one on the tensor's device; none on the host.
inline std::optional<StreamRef> stream_of(const std::optional<StreamRef>& chosen,
                                          const at::Tensor& tensor) {
    return chosen ? chosen : current_stream(tensor);
}

}  // namespace detail

/// The tensor's memory, as the library takes it. `name` is what errors call the tensor. Throws
/// Error(invalid_argument) if it is sparse, negated only when it is read, of a type or on a device
/// that the library does not know, or not contiguous: on another rank, whose tensor has other
/// strides, the same memory would be other elements.
inline TensorView view_of(const at::Tensor& tensor, const std::string& name) {
    auto view = detail::memory_of(tensor, name);
    if (!tensor.is_contiguous())
        detail::refuse(name,
                       "is permuted in memory: give a contiguous() copy, or on all ranks the "
                       "permute() of it that is contiguous");
    return view;
}

}  // namespace guozhuang::torch
