#pragma once

#include <algorithm>
#include <atomic>
#include <cuda_runtime_api.h>

#include "base/mutex.hpp"
#include "device/cuda/event_pool.hpp"
#include "device/cuda/kernel_shape.hpp"
#include "device/cuda/on_device.hpp"

namespace guozhuang::device {

/// State of one device in this process. Never destroyed, since streams and events refer to it.
/// Thread-safe.
class CudaDevice {
public:
    /// Reads attributes only. The first use() makes the context.
    explicit CudaDevice(int index);

    int index() const noexcept { return index_; }
    /// The multiprocessors that kernels may fill, known after the first use().
    Multiprocessors processors() const noexcept {
        const int limit = processor_limit();
        return {limit == 0 ? processors_ : std::min(limit, processors_), occupancy_};
    }
    int processor_limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
    void limit_processors(int most) noexcept { limit_.store(most, std::memory_order_relaxed); }
    EventPool& events() noexcept { return events_; }

    /// Makes the device current for a scope: `const auto here = device.use();`. The first call
    /// makes the primary context, if the program has not, and loads all kernels: loading one later
    /// may wait for device work that waits for another rank. Throws Error(unavailable) if the
    /// kernels are not built for the device.
    OnDevice use();
    /// The context of use().
    CUcontext primary();
    /// See Driver::require_healthy. A device that was never used is healthy.
    void require_healthy();

private:
    void prepare() GUOZHUANG_REQUIRES(mutex_);

    const int index_;
    const int processors_;
    std::atomic<int> limit_ = 0;  ///< 0: none
    EventPool events_;
    std::atomic<CUcontext> primary_ = nullptr;  ///< null before the first use
    Occupancy occupancy_;                       ///< of the first use
    base::Mutex mutex_;
    cudaStream_t probing_ GUOZHUANG_GUARDED_BY(mutex_) = nullptr;  ///< has no other work
    cudaEvent_t probe_ GUOZHUANG_GUARDED_BY(mutex_) = nullptr;     ///< on that stream
};

}  // namespace guozhuang::device
