#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <span>

#include "device/copy.hpp"
#include "device/cuda/kernel_shape.hpp"
#include "device/reduction.hpp"

namespace guozhuang::device {

/// How many bytes a copy needs to keep all blocks of a full grid busy.
std::size_t full_grid_bytes(const Multiprocessors& processors);

/// Enqueues Driver::copy_all(), in as few kernels as have room for the copies in their arguments,
/// on a stream of the current device. The arguments are checked.
cudaError_t launch_copies(std::span<const Copy> copies, const Finish& finish,
                          const Multiprocessors& processors, cudaStream_t stream);

/// Loads the kernels of all element types for the current device, so that no launch does.
cudaError_t load_copy_kernels(Occupancy& occupancy);

}  // namespace guozhuang::device
