// Memory of devices and hosts, copies, fills and sharing between processes.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/capture.hpp"
#include "support/emulated_cuda/memory.hpp"
#include "support/emulated_cuda/submit.hpp"

namespace guozhuang::emulated_cuda {
namespace {

enum class Side { device, managed, pinned, pageable };

/// Where a range lies. Throws Refusal if it reaches beyond what it begins in.
Side side_of(const void* address, std::size_t bytes) {
    const auto memory = find_memory(address);
    if (!memory) return Side::pageable;
    require(is_covered(*memory, {static_cast<const std::byte*>(address), bytes}),
            cudaErrorInvalidValue);
    if (memory->is_of_device()) return Side::device;
    return memory->kind() == MemoryKind::managed ? Side::managed : Side::pinned;
}

/// Throws Refusal unless the memory is where the copy's kind says.
void check_direction(Side to, Side from, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return;
    const auto fits = [](Side side, bool device) {
        return side == Side::managed || (side == Side::device) == device;
    };
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    require(fits(to, to_device) && fits(from, from_device), cudaErrorInvalidMemcpyDirection);
}

void wait_for(Stream& stream, std::optional<std::uint64_t> position) {
    if (position) stream.wait_for(*position, stream.device());
}

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    cudaMemcpyKind kind;
};

/// Whether the caller of a copy still waits for it: after an error of the device it returns at
/// once, and may free the memory.
struct CopyCaller {
    std::mutex mutex;
    bool has_gone = false;
};

/// A copy from or to pageable memory holds its caller until it is done. CUDA may, so whoever must
/// not be held has to use memory that is pinned.
cudaError_t copy(const Copy& wanted, Stream& stream, bool hold_caller) {
    if (wanted.bytes == 0) return cudaSuccess;
    const auto to = side_of(wanted.to, wanted.bytes), from = side_of(wanted.from, wanted.bytes);
    check_direction(to, from, wanted.kind);
    const bool pageable = to == Side::pageable || from == Side::pageable;
    require(!pageable || capture_status(stream) == cudaStreamCaptureStatusNone,
            cudaErrorStreamCaptureUnsupported);
    const auto caller = std::make_shared<CopyCaller>();
    const auto position = submit(stream, Stream::Actor::copy, [wanted, caller] {
        const std::lock_guard lock(caller->mutex);
        if (!caller->has_gone) std::memmove(wanted.to, wanted.from, wanted.bytes);
    });
    if (hold_caller || pageable) {
        wait_for(stream, position);
        const std::lock_guard lock(caller->mutex);
        caller->has_gone = true;
    }
    return stream.device().error();
}

cudaError_t fill(std::span<std::byte> range, int value, Stream& stream, bool hold_caller) {
    if (range.empty()) return cudaSuccess;
    require(side_of(range.data(), range.size()) != Side::pageable, cudaErrorInvalidValue);
    const auto position = submit(stream, Stream::Actor::copy, [range, value] {
        std::memset(range.data(), value, range.size());
    });
    if (hold_caller) wait_for(stream, position);
    return stream.device().error();
}

/// Waits until no stream can use the memory any more, as CUDA does before it frees any.
void wait_until_unused(const Memory& memory) {
    for (auto* device : devices())
        if (!memory.is_of_device() || device == &memory.device()) device->wait_until_idle();
}

cudaError_t allocate(void** address, std::size_t bytes, MemoryKind kind) {
    require(address != nullptr, cudaErrorInvalidValue);
    *address = nullptr;
    if (bytes == 0) return cudaSuccess;
    auto& device = current_device();
    if (kind != MemoryKind::pool) device.wait_before_allocating();
    *address = add_memory(kind <= MemoryKind::pool ? Memory::on_device(device, bytes, kind)
                                                   : Memory::on_host(device, bytes, kind));
    return cudaSuccess;
}

/// Takes out the memory that begins at the address, if it is of such a kind.
std::shared_ptr<Memory> take_out(const void* address, std::initializer_list<MemoryKind> kinds,
                                 cudaError_t otherwise) {
    auto memory = find_memory(address);
    require(memory && memory->bytes().data() == address &&
                std::find(kinds.begin(), kinds.end(), memory->kind()) != kinds.end(),
            otherwise);
    return memory;
}

}  // namespace
}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
    return call(__func__, unsafe_in_capture,
                [&] { return allocate(address, bytes, MemoryKind::device); });
}

cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned) {
    return call(__func__, unsafe_in_capture, [&] {
        require(bytes > 0, cudaErrorInvalidValue);
        return allocate(address, bytes, MemoryKind::managed);
    });
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
    return call(__func__, unsafe_in_capture,
                [&] { return allocate(address, bytes, MemoryKind::pinned); });
}

cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
    return call(__func__, unsafe_in_capture,
                [&] { return allocate(address, bytes, MemoryKind::pinned); });
}

cudaError_t cudaFree(void* address) {
    return call(__func__, unsafe_in_capture, [&] {
        if (!address) return cudaSuccess;
        const auto memory =
            take_out(address, {MemoryKind::device, MemoryKind::pool, MemoryKind::managed},
                     cudaErrorInvalidValue);
        wait_until_unused(*memory);
        remove_memory(address);
        return memory->device().error();
    });
}

cudaError_t cudaFreeHost(void* address) {
    return call(__func__, unsafe_in_capture, [&] {
        if (!address) return cudaSuccess;
        const auto memory = take_out(address, {MemoryKind::pinned}, cudaErrorInvalidValue);
        wait_until_unused(*memory);
        remove_memory(address);
        return cudaSuccess;
    });
}

cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t stream) {
    return call(__func__, usual, [&] {
        static_cast<void>(stream_of(stream));
        return allocate(address, bytes, MemoryKind::pool);
    });
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
    return call(__func__, usual, [&] {
        auto memory =
            take_out(address, {MemoryKind::device, MemoryKind::pool}, cudaErrorInvalidValue);
        submit(*stream_of(stream), Stream::Actor::copy, [address] { remove_memory(address); });
        return cudaSuccess;
    });
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
    return call(__func__, unsafe_in_capture, [&] {
        require(address && bytes > 0, cudaErrorInvalidValue);
        current_device().wait_before_allocating();
        add_memory(Memory::registered(current_device(), {static_cast<std::byte*>(address), bytes}));
        return cudaSuccess;
    });
}

cudaError_t cudaHostUnregister(void* address) {
    return call(__func__, unsafe_in_capture, [&] {
        const auto memory =
            take_out(address, {MemoryKind::registered}, cudaErrorHostMemoryNotRegistered);
        wait_until_unused(*memory);
        remove_memory(address);
        return cudaSuccess;
    });
}

cudaError_t cudaHostGetDevicePointer(void** device_address, void* address, unsigned) {
    return call(__func__, usual, [&] {
        const auto memory = find_memory(address);
        require(memory && memory->is_of_host(), cudaErrorInvalidValue);
        *device_address = address;
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    return call(__func__, usual, [&] {
        *attributes = {};
        const auto memory = find_memory(address);
        attributes->type = !memory                  ? cudaMemoryTypeUnregistered
                           : memory->is_of_device() ? cudaMemoryTypeDevice
                           : memory->is_of_host()   ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeManaged;
        attributes->device = memory ? memory->device().index() : cudaInvalidDeviceId;
        attributes->devicePointer = memory ? const_cast<void*>(address) : nullptr;
        attributes->hostPointer =
            memory && memory->is_of_device() ? nullptr : const_cast<void*>(address);
        return cudaSuccess;
    });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    return call(__func__, usual, [&] {
        *total = current_device().total();
        *free = *total - current_device().used();
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return call(__func__, unsafe_in_capture, [&] {
        return copy({to, from, bytes, kind}, *stream_of(nullptr), true);
    });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return call(__func__, usual, [&] {
        return copy({to, from, bytes, kind}, *stream_of(stream), false);
    });
}

cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
    return call(__func__, unsafe_in_capture, [&] {
        return fill({static_cast<std::byte*>(address), bytes}, value, *stream_of(nullptr), true);
    });
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream) {
    return call(__func__, usual, [&] {
        return fill({static_cast<std::byte*>(address), bytes}, value, *stream_of(stream), false);
    });
}
