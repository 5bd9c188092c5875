#pragma once

#include <guozhuang/stream.hpp>
#include <optional>
#include <torch/types.h>

// The first is a file that only a libtorch with CUDA has.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <c10/cuda/CUDAStream.h>
#define GUOZHUANG_TORCH_HAS_CUDA 1
#endif

/// Alone in a header, in place of which tests without a GPU include another one.
namespace guozhuang::torch::detail {

/// PyTorch's current stream on the tensor's device; none on the host.
inline std::optional<StreamRef> current_stream([[maybe_unused]] const at::Tensor& tensor) {
#ifdef GUOZHUANG_TORCH_HAS_CUDA
    if (tensor.is_cuda())
        return StreamRef{{DeviceKind::cuda, static_cast<int>(tensor.get_device())},
                         c10::cuda::getCurrentCUDAStream(tensor.get_device()).stream()};
#endif
    return std::nullopt;
}

}  // namespace guozhuang::torch::detail
