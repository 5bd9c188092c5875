#include "device/cuda/cuda_sharing.hpp"

#include <bit>
#include <cstring>
#include <guozhuang/error.hpp>
#include <string>

#include "device/checks.hpp"
#include "device/cuda/cuda_error.hpp"
#include "device/cuda/driver_functions.hpp"

namespace guozhuang::device {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryOffer::handle));
static_assert(sizeof(CUuuid) == sizeof(DeviceId));

/// Lets the current device reach another device of this process.
void enable_peer(int device) {
    const auto status = cudaDeviceEnablePeerAccess(device, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();  // otherwise the program would find it
        return;
    }
    check(status, "cannot reach the memory of another device");
}

}  // namespace

OnDevice CudaSharing::use(int device) const {
    check_device(device, static_cast<int>(devices_.size()));
    return devices_[static_cast<std::size_t>(device)]->use();
}

DeviceId CudaSharing::id_of(int device) const {
    check_device(device, static_cast<int>(devices_.size()));
    CUuuid uuid{};
    check(driver_functions().uuid_of(&uuid, device), "cannot identify the device");
    DeviceId id;
    std::memcpy(id.data(), &uuid, sizeof uuid);
    return id;
}

MemoryOffer CudaSharing::offer(int device, std::span<std::byte> memory) {
    const auto here = use(device);
    cudaIpcMemHandle_t handle{};
    check(cudaIpcGetMemHandle(&handle, memory.data()), "cannot share memory of the device");
    MemoryOffer offer{.process = own_process(),
                      .address = reinterpret_cast<std::uintptr_t>(memory.data()),
                      .bytes = memory.size(),
                      .device = device};
    std::memcpy(offer.handle.data(), &handle, sizeof handle);
    return offer;
}

std::span<std::byte> CudaSharing::open(int device, const MemoryOffer& offer) {
    const auto here = use(device);
    if (offer.process == own_process()) {
        if (offer.device != device) enable_peer(offer.device);
        return {std::bit_cast<std::byte*>(offer.address), offer.bytes};
    }
    cudaIpcMemHandle_t handle{};
    std::memcpy(&handle, offer.handle.data(), sizeof handle);
    void* memory = nullptr;
    check(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
          "cannot open the device memory of another process");
    return {static_cast<std::byte*>(memory), offer.bytes};
}

void CudaSharing::close(int device, const MemoryOffer& offer,
                        std::span<std::byte> memory) noexcept {
    if (memory.empty() || offer.process == own_process()) return;
    try {
        const auto here = use(device);
        cudaIpcCloseMemHandle(memory.data());
    } catch (const Error&) {
        // The device has failed before, which was reported, or the process is at its end.
    }
}

void CudaSharing::register_host(int device, std::span<std::byte> memory) {
    const auto here = use(device);
    check(cudaHostRegister(memory.data(), memory.size(),
                           cudaHostRegisterPortable | cudaHostRegisterMapped),
          "cannot register memory of the host");
    void* on_device = nullptr;
    const auto status = cudaHostGetDevicePointer(&on_device, memory.data(), 0);
    if (status == cudaSuccess && on_device == memory.data()) return;
    unregister_host(device, memory);
    check(status, "cannot reach registered memory of the host");
    throw Error(ErrorCode::unavailable,
                "the device reaches registered memory of the host by another address only");
}

void CudaSharing::unregister_host(int device, std::span<std::byte> memory) noexcept {
    try {
        const auto here = use(device);
        cudaHostUnregister(memory.data());
    } catch (const Error&) {
        // As in close().
    }
}

}  // namespace guozhuang::device
