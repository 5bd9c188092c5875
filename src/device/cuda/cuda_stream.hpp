#pragma once

#include <array>
#include <cuda_runtime_api.h>

#include "device/cuda/cuda_device.hpp"
#include "device/device.hpp"

namespace guozhuang::device {

/// A CUDA event, which returns to its device's pool at the end.
class CudaEvent final : public Event {
public:
    /// The device is current; the creator of the event records it.
    explicit CudaEvent(CudaDevice& device) : device_(device), event_(device.events().take()) {}
    ~CudaEvent() override { device_.events().give_back(event_); }
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    bool done() const override;
    cudaEvent_t native() const noexcept { return event_; }

private:
    CudaDevice& device_;
    const cudaEvent_t event_;
};

class CudaStream final : public Stream {
public:
    enum class Owner : std::uint8_t { plugin, user };
    /// The plugin's streams are destroyed with their CudaStream.
    CudaStream(CudaDevice& device, cudaStream_t stream, Owner owner) noexcept
        : device_(device), stream_(stream), owner_(owner) {}
    /// Makes a stream that is independent of the default stream, and has the highest priority if
    /// the device has priorities.
    static std::shared_ptr<CudaStream> make(CudaDevice& device);

    ~CudaStream() override;
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    void wait(const std::shared_ptr<const Event>& event) override;
    std::shared_ptr<Event> record() override;
    StreamRef ref() const noexcept override {
        return {.device = {DeviceKind::cuda, device_.index()}, .native = stream_};
    }

    CudaDevice& device() const noexcept { return device_; }
    cudaStream_t native() const noexcept { return stream_; }

private:
    CudaDevice& device_;
    const cudaStream_t stream_;
    const Owner owner_;
};

/// Users' streams as Streams. It keeps those that were wrapped last, so that wrapping a stream for
/// every tensor allocates nothing. Thread-safe.
class WrappedStreams {
public:
    /// Throws Error(invalid_argument) if the stream does not belong to the device's primary
    /// context. Do not pass a destroyed stream: CUDA cannot tell.
    std::shared_ptr<CudaStream> wrap(CudaDevice& device, cudaStream_t stream);

private:
    base::Mutex mutex_;
    std::array<std::shared_ptr<CudaStream>, 64> recent_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::device
