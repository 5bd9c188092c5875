#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <guozhuang/types.hpp>

#include "device/cuda/kernel_shape.hpp"

namespace guozhuang::device {

/// Checked arguments of Driver::sum_of_squares.
struct SumLaunch {
    DType dtype;
    const void* elements;
    std::size_t count;
    double* scratch;
    double* into;
};

/// Enqueues the kernels on a stream of the current device.
cudaError_t launch_sum_of_squares(const SumLaunch& launch, const Multiprocessors& processors,
                                  cudaStream_t stream);

/// Loads the kernels of all element types for the current device, so that no launch does.
cudaError_t load_elements_kernels(Occupancy& occupancy);

}  // namespace guozhuang::device
