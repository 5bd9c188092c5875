#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <guozhuang/types.hpp>
#include <span>

#include "device/cuda/kernel_shape.hpp"
#include "device/reduction.hpp"

namespace guozhuang::device {

/// Checked arguments of Driver::reduce, with at least one element.
struct ReduceLaunch {
    const Reduction& reduction;
    std::span<const std::span<std::byte>> outputs;
    std::span<const std::span<const std::byte>> inputs;
};

/// Enqueues the kernel on a stream of the current device.
cudaError_t launch_reduce(const ReduceLaunch& launch, const Multiprocessors& processors,
                          cudaStream_t stream);

/// Loads the kernels of all operations and element types for the current device, so that no launch
/// does.
cudaError_t load_reduce_kernels(Occupancy& occupancy);

}  // namespace guozhuang::device
