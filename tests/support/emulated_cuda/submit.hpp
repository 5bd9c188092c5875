#pragma once

#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <optional>

#include "support/emulated_cuda/streams.hpp"

namespace guozhuang::emulated_cuda {

/// The stream of a handle. Throws Refusal if there is none or its device has failed.
std::shared_ptr<Stream> stream_of(cudaStream_t handle);

/// Enqueues the work and returns the position behind it, or counts it as a node, and returns none,
/// if the stream is captured. Whatever a function of CUDA enqueues goes through here.
std::optional<std::uint64_t> submit(Stream& stream, Stream::Actor actor,
                                    std::function<void()> work);

}  // namespace guozhuang::emulated_cuda
