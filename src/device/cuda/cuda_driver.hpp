#pragma once

#include <vector>

#include "device/device.hpp"

namespace guozhuang::device {

class CudaStream;

class CudaDriver final : public Driver {
public:
    /// Drives devices 0 .. device_count-1, at least one.
    explicit CudaDriver(int device_count);

    int device_count() const noexcept override { return static_cast<int>(processors_.size()); }
    std::string description(int device) const override;

    std::span<std::byte> allocate(int device, std::size_t bytes) override;
    void release(int device, std::span<std::byte> memory) noexcept override;
    void copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) override;
    void reduce(Stream& stream, ReduceOp op, DType dtype, std::span<std::byte> into,
                std::span<const std::byte> other) override;

    std::shared_ptr<Stream> make_stream(int device) override;
    std::shared_ptr<Stream> wrap(StreamRef stream) override;

private:
    std::vector<int> processors_;  ///< multiprocessors of each device
};

}  // namespace guozhuang::device
