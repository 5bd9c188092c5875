#pragma once

#include <cuda_runtime_api.h>

#include "device/device.hpp"

namespace guozhuang::device {

class CudaEvent final : public Event {
public:
    /// Marks the end of what is on the stream now.
    CudaEvent(int device, cudaStream_t stream);
    ~CudaEvent() override;
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    bool done() const override;
    cudaEvent_t native() const noexcept { return event_; }

private:
    const int device_;
    cudaEvent_t event_ = nullptr;
};

class CudaStream final : public Stream {
public:
    /// Makes a stream that is independent of the default stream, and has the highest priority where
    /// the device has priorities.
    static std::shared_ptr<CudaStream> make(int device);
    static std::shared_ptr<CudaStream> wrap(int device, cudaStream_t stream);

    ~CudaStream() override;
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    void wait(const std::shared_ptr<const Event>& event) override;
    void launch(std::function<void()> work) override;
    std::shared_ptr<Event> record() override;
    StreamRef ref() const noexcept override {
        return {.device = {DeviceKind::cuda, device_}, .native = stream_};
    }

    int device() const noexcept { return device_; }
    cudaStream_t native() const noexcept { return stream_; }

private:
    CudaStream(int device, cudaStream_t stream, bool owned) noexcept
        : device_(device), stream_(stream), owned_(owned) {}

    const int device_;
    const cudaStream_t stream_;
    const bool owned_;
};

}  // namespace guozhuang::device
