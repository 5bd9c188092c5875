#pragma once

// Included before all else in a .cu file that g++ compiles as C++: what nvcc knows by itself. A
// kernel is a function, and a launch calls it once for each thread of each block, the blocks in
// random order. Kernels that wait for other threads of their block (__syncthreads) cannot run like
// this, and say so.

#define __DEVICE_LAUNCH_PARAMETERS_H__  // NOLINT: instead of the toolkit's threadIdx
// The toolkit's own hands the kernel on without its type.
#define cudaLaunchKernelEx toolkits_launch_kernel_ex  // NOLINT
#include <cuda_runtime.h>
#undef cudaLaunchKernelEx

#include <atomic>
#include <cmath>
#include <functional>
#include <math.h>
#include <tuple>
#include <utility>
#include <vector>

// NOLINTBEGIN: the names are CUDA's.
inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
// NOLINTEND

namespace guozhuang::emulated_cuda {

struct KernelLaunch {
    const char* function;  ///< of CUDA, that was called
    const void* kernel;
    dim3 grid, block;
    std::function<void()> run_thread;  ///< the kernel with its arguments
    cudaStream_t stream;
};

}  // namespace guozhuang::emulated_cuda

/// Enqueues run_all() of the launch. The first launch of a kernel waits for the device.
extern "C" cudaError_t emulated_cuda_launch(const guozhuang::emulated_cuda::KernelLaunch& launch,
                                            std::function<void()> run_all);
extern "C" void emulated_cuda_break_rule(const char* text);
/// Writes an order of as many blocks, another one at each call.
extern "C" void emulated_cuda_order_blocks(unsigned* order, unsigned blocks);

namespace guozhuang::emulated_cuda {

inline void run_block(const KernelLaunch& launch) {
    for (threadIdx.z = 0; threadIdx.z < launch.block.z; ++threadIdx.z)
        for (threadIdx.y = 0; threadIdx.y < launch.block.y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < launch.block.x; ++threadIdx.x) launch.run_thread();
}

inline void run_grid(const KernelLaunch& launch) {
    gridDim = launch.grid;
    blockDim = launch.block;
    std::vector<unsigned> order(std::size_t{launch.grid.x} * launch.grid.y * launch.grid.z);
    emulated_cuda_order_blocks(order.data(), static_cast<unsigned>(order.size()));
    for (const unsigned block : order) {
        blockIdx.x = block % launch.grid.x;
        blockIdx.y = block / launch.grid.x % launch.grid.y;
        blockIdx.z = block / launch.grid.x / launch.grid.y;
        run_block(launch);
    }
}

inline cudaError_t enqueue(const KernelLaunch& launch) {
    return emulated_cuda_launch(launch, [launch] { run_grid(launch); });
}

/// The kernel with a copy of its arguments, as they are now.
template <class... Parameters, std::size_t... I>
std::function<void()> bind_arguments(void (*kernel)(Parameters...), void** arguments,
                                     std::index_sequence<I...>) {
    return [kernel, copied = std::tuple<std::remove_cv_t<Parameters>...>(
                        *static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...)] {
        std::apply(kernel, copied);
    };
}

template <class... Parameters>
std::function<void()> bind_arguments(void (*kernel)(Parameters...), void** arguments) {
    return bind_arguments(kernel, arguments, std::index_sequence_for<Parameters...>());
}

}  // namespace guozhuang::emulated_cuda

// NOLINTBEGIN(readability-identifier-naming,readability-function-size): CUDA's functions, where the
// kernel still has its type.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             std::size_t = 0, cudaStream_t stream = nullptr) {
    using namespace guozhuang::emulated_cuda;
    return enqueue({__func__, reinterpret_cast<const void*>(kernel), grid, block,
                    bind_arguments(kernel, arguments), stream});
}

template <class... Parameters>
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                                void** arguments) {
    using namespace guozhuang::emulated_cuda;
    return enqueue({__func__, reinterpret_cast<const void*>(kernel), config->gridDim,
                    config->blockDim, bind_arguments(kernel, arguments), config->stream});
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
    std::tuple<std::remove_cv_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
    return std::apply(
        [&](auto&... each) {
            void* addresses[] = {&each..., nullptr};
            return cudaLaunchKernelExC(config, kernel, addresses);
        },
        values);
}

template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
// NOLINTEND(readability-identifier-naming,readability-function-size)

// NOLINTBEGIN: device functions that host compilers do not know, by CUDA's names.
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline void __syncthreads() {
    emulated_cuda_break_rule("the emulation cannot run a kernel with __syncthreads");
}
template <class T>
void __stwb(T* address, T value) {
    *address = value;
}
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref(*address).fetch_add(value);
}
// NOLINTEND
