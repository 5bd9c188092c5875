#pragma once

#include <chrono>
#include <cuda_runtime_api.h>
#include <memory>
#include <mutex>
#include <optional>

#include "support/emulated_cuda/capture.hpp"

namespace guozhuang::emulated_cuda {

class Device;
class Stream;

/// One recording of an event: a position in a stream, and when it was reached.
struct Recording {
    std::shared_ptr<Stream> stream;
    std::uint64_t position = 0;
    std::chrono::steady_clock::time_point time = {};  ///< written before the position is reached
};

/// Thread-safe.
class Event {
public:
    Event(Device& device, unsigned flags) noexcept : device_(device), flags_(flags) {}

    Device& device() const noexcept { return device_; }
    bool is_timed() const noexcept { return (flags_ & cudaEventDisableTiming) == 0; }

    void record(const std::shared_ptr<Stream>& stream);
    /// Null before the first one, which is as if it had been reached.
    std::shared_ptr<Recording> recording();
    std::optional<CapturedPoint> captured();

private:
    Device& device_;
    const unsigned flags_;
    std::mutex mutex_;
    std::shared_ptr<Recording> recording_;
    std::optional<CapturedPoint> captured_;
};

}  // namespace guozhuang::emulated_cuda
