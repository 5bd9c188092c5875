#pragma once

#include <cuda_runtime_api.h>
#include <memory>
#include <mutex>
#include <optional>

#include "support/emulated_cuda/capture.hpp"

namespace guozhuang::emulated_cuda {

class Device;
class Stream;

/// One recording of an event: a position in a stream.
struct Recording {
    std::shared_ptr<Stream> stream;
    std::uint64_t position = 0;
};

/// Thread-safe.
class Event {
public:
    explicit Event(Device& device) noexcept : device_(device) {}

    Device& device() const noexcept { return device_; }

    void record(const std::shared_ptr<Stream>& stream);
    /// Null before the first recording, which counts as reached.
    std::shared_ptr<Recording> recording();
    std::optional<CapturedPoint> captured();

private:
    Device& device_;
    std::mutex mutex_;
    std::shared_ptr<Recording> recording_;
    std::optional<CapturedPoint> captured_;
};

}  // namespace guozhuang::emulated_cuda
