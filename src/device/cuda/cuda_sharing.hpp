#pragma once

#include <memory>
#include <vector>

#include "device/cuda/cuda_device.hpp"
#include "device/memory_sharing.hpp"

namespace guozhuang::device {

/// Shares memory between processes by CUDA IPC handles, which only exist for memory from cudaMalloc
/// and open only in other processes.
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
