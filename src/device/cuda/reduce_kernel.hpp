#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <guozhuang/types.hpp>

namespace guozhuang::device {

/// into = into (op) other on `count` elements, as Driver::reduce. The arguments are checked.
struct ReduceLaunch {
    ReduceOp op;
    DType dtype;
    void* into;
    const void* other;
    std::size_t count;
};

/// Enqueues the kernel on a stream of the current device, which has `processors` multiprocessors.
cudaError_t launch_reduce(const ReduceLaunch& launch, int processors, cudaStream_t stream);

/// Loads the kernels of all operations and element types for the current device, so that no launch
/// has to.
cudaError_t load_reduce_kernels();

}  // namespace guozhuang::device
