#pragma once

#include <algorithm>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <unordered_map>

/// The shape of all kernels: bound by memory, they access 16 bytes at a time where addresses allow
/// it, with enough blocks to fill the device.
namespace guozhuang::device {

inline constexpr unsigned threads_per_block = 256;
inline constexpr std::size_t pack_bytes = 16;

/// How many blocks of each kernel fit on a multiprocessor of a device, which depends on the
/// kernel's registers. Any thread may read it once all kernels are loaded.
class Occupancy {
public:
    /// Loads kernels for the current device before their first launch, which might otherwise wait
    /// until the device is idle.
    template <class... Kernels>
    cudaError_t load(Kernels*... kernels) {
        auto status = cudaSuccess;
        static_cast<void>(
            (((status = load_one(reinterpret_cast<const void*>(kernels))) == cudaSuccess) && ...));
        return status;
    }
    unsigned of(const void* kernel) const { return static_cast<unsigned>(blocks_.at(kernel)); }

private:
    cudaError_t load_one(const void* kernel) {
        cudaFuncAttributes attributes{};
        const auto status = cudaFuncGetAttributes(&attributes, kernel);
        if (status != cudaSuccess) return status;
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_[kernel], kernel,
                                                             threads_per_block, 0);
    }

    std::unordered_map<const void*, int> blocks_;
};

/// The multiprocessors of a device that kernels may fill.
struct Multiprocessors {
    int count;
    const Occupancy& occupancy;

    /// The number of blocks that run on them at the same time.
    template <class Kernel>
    unsigned most_blocks(Kernel* kernel) const {
        return static_cast<unsigned>(count) * occupancy.of(reinterpret_cast<const void*>(kernel));
    }
    template <class Kernel>
    unsigned blocks_up_to(std::size_t wanted, Kernel* kernel) const {
        return static_cast<unsigned>(std::min<std::size_t>(wanted, most_blocks(kernel)));
    }
    /// The blocks for `work` turns of a loop that the threads share.
    template <class Kernel>
    unsigned blocks_for(std::size_t work, Kernel* kernel) const {
        return blocks_up_to((work + threads_per_block - 1) / threads_per_block, kernel);
    }
};

}  // namespace guozhuang::device
