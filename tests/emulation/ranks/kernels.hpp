#pragma once

#include "support/emulated_cuda/kernel.hpp"

#include <chrono>
#include <thread>

#include "emulation/cuda_objects.hpp"

/// Kernels of a trainer. Included first.
namespace guozhuang::test {

/// A millisecond for each of four blocks, each of which then writes its part.
inline __global__ void set_slowly(float* values, unsigned count, float value) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (unsigned at = blockIdx.x; at < count; at += gridDim.x) values[at] = value;
}

inline __global__ void scale(const float* from, float* to, unsigned count, float factor) {
    for (unsigned at = blockIdx.x; at < count; at += gridDim.x) to[at] = factor * from[at];
}

inline __global__ void run_for_ever() {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

inline void launch_set(float* values, unsigned count, float value, cudaStream_t stream) {
    void* arguments[] = {&values, &count, &value};
    expect(cudaLaunchKernel(set_slowly, dim3(4), dim3(1), arguments, 0, stream), "no launch");
}

inline void launch_scale(const float* from, float* to, unsigned count, float factor,
                         cudaStream_t stream) {
    void* arguments[] = {&from, &to, &count, &factor};
    expect(cudaLaunchKernel(scale, dim3(4), dim3(1), arguments, 0, stream), "no launch");
}

inline void launch_endless(cudaStream_t stream) {
    void* arguments[] = {nullptr};  // none
    expect(cudaLaunchKernel(run_for_ever, dim3(1), dim3(1), arguments, 0, stream), "no launch");
}

}  // namespace guozhuang::test
