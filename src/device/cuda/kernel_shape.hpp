#pragma once

#include <algorithm>
#include <cstddef>
#include <cuda_runtime_api.h>

/// What the kernels have in common: bound by memory, they access 16 bytes at a time where addresses
/// allow it, with enough blocks to fill the device.
namespace guozhuang::device {

inline constexpr unsigned threads_per_block = 256;
inline constexpr unsigned blocks_per_processor = 8;
inline constexpr std::size_t pack_bytes = 16;

/// As many as are on the device at a time.
inline unsigned most_blocks(int processors) {
    return static_cast<unsigned>(processors) * blocks_per_processor;
}

inline unsigned blocks_up_to(std::size_t wanted, int processors) {
    return static_cast<unsigned>(std::min<std::size_t>(wanted, most_blocks(processors)));
}

/// The blocks for `work` turns of a loop that the threads share.
inline unsigned blocks_for(std::size_t work, int processors) {
    return blocks_up_to((work + threads_per_block - 1) / threads_per_block, processors);
}

/// Loads kernels before their first launch, for which CUDA may wait until the device is idle.
template <class... Kernels>
cudaError_t load(Kernels*... kernels) {
    cudaFuncAttributes attributes{};
    auto status = cudaSuccess;
    static_cast<void>(
        (((status = cudaFuncGetAttributes(&attributes, kernels)) == cudaSuccess) && ...));
    return status;
}

}  // namespace guozhuang::device
