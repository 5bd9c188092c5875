#pragma once

#include <memory>
#include <vector>

#include "device/cuda/cuda_device.hpp"
#include "device/memory_sharing.hpp"

namespace guozhuang::device {

/// Between processes by CUDA's IPC handles, which are for memory of cudaMalloc alone and open in
/// other processes only.
class CudaSharing final : public MemorySharing {
public:
    /// All devices of the driver, which owns them.
    explicit CudaSharing(const std::vector<std::unique_ptr<CudaDevice>>& devices)
        : devices_(devices) {}

    DeviceId id_of(int device) const override;
    MemoryOffer offer(int device, std::span<std::byte> memory) override;
    std::span<std::byte> open(int device, const MemoryOffer& offer) override;
    void close(int device, const MemoryOffer& offer, std::span<std::byte> memory) noexcept override;
    void register_host(int device, std::span<std::byte> memory) override;
    void unregister_host(int device, std::span<std::byte> memory) noexcept override;

private:
    OnDevice use(int device) const;

    const std::vector<std::unique_ptr<CudaDevice>>& devices_;
};

}  // namespace guozhuang::device
