#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <guozhuang/types.hpp>

namespace guozhuang::device {

/// Enqueues elements = elements * factor, as Driver::scale, on a stream of the current device,
/// which has `processors` multiprocessors. At least one element; the arguments are checked.
cudaError_t launch_scale(DType dtype, void* elements, std::size_t count, double factor,
                         int processors, cudaStream_t stream);

/// Elements whose squares are added up, as Driver::sum_of_squares. The arguments are checked.
struct SumLaunch {
    DType dtype;
    const void* elements;
    std::size_t count;
    double* scratch;
    double* into;
};

/// Enqueues the kernels on a stream of the current device, which has `processors` multiprocessors.
cudaError_t launch_sum_of_squares(const SumLaunch& launch, int processors, cudaStream_t stream);

/// Loads the kernels of all element types for the current device, so that no launch has to.
cudaError_t load_elements_kernels();

}  // namespace guozhuang::device
