#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <vector>

#include "base/mutex.hpp"

namespace guozhuang::device {

/// CUDA events of one device, reused because creating and destroying them takes driver locks. A
/// stream's wait for an event refers to the recording at the time of the call, so the event can be
/// recorded again for other work. Never destroyed. Thread-safe.
class EventPool {
public:
    /// An unused event. The device is current.
    cudaEvent_t take();
    /// Makes no CUDA calls.
    void give_back(cudaEvent_t event) noexcept;

private:
    /// Null if there is none; then it reserves room for an event that the caller creates.
    cudaEvent_t take_free();

    base::Mutex mutex_;
    std::size_t made_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    /// Has room for all events that were created.
    std::vector<cudaEvent_t> free_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::device
