#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "device/cuda/kernel_shape.hpp"

namespace guozhuang::device {

/// Enqueues a kernel that sets at least one byte of memory to a pattern: the byte at an address is
/// byte (address modulo 8) of the pattern. The stream belongs to the current device.
cudaError_t launch_fill(std::span<std::byte> memory, std::uint64_t pattern,
                        const Multiprocessors& processors, cudaStream_t stream);

/// Loads the kernel for the current device, so that no launch does.
cudaError_t load_fill_kernel(Occupancy& occupancy);

}  // namespace guozhuang::device
