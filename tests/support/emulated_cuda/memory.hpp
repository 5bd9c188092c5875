#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "support/emulated_cuda/devices.hpp"

namespace guozhuang::emulated_cuda {

enum class MemoryKind { device, pool, managed, imported, pinned, registered };

/// Memory that CUDA knows. Allocated memory is unmapped at the end of the object.
class Memory {
public:
    /// Throws Refusal, as make_host_memory() and import_memory() do.
    static std::shared_ptr<Memory> on_device(Device& device, std::size_t bytes, MemoryKind kind);
    /// Of the host; managed memory too, which both sides may touch.
    static std::shared_ptr<Memory> on_host(Device& device, std::size_t bytes, MemoryKind kind);
    static std::shared_ptr<Memory> registered(Device& device, std::span<std::byte> bytes);
    /// Maps memory of another process, whose file is open here, and which is closed by this.
    static std::shared_ptr<Memory> imported(Device& device, int physical, int file,
                                            std::size_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::span<std::byte> bytes() const noexcept { return bytes_; }
    MemoryKind kind() const noexcept { return kind_; }
    Device& device() const noexcept { return device_; }
    int file() const noexcept { return file_; }
    std::uint64_t generation() const noexcept { return generation_; }
    /// Only a device's threads may touch it.
    bool is_of_device() const noexcept { return kind_ <= MemoryKind::pool || is_imported(); }
    bool is_imported() const noexcept { return kind_ == MemoryKind::imported; }
    bool is_of_host() const noexcept { return kind_ >= MemoryKind::pinned; }
    bool contains(std::span<const std::byte> range) const noexcept;

private:
    Memory(Device& device, MemoryKind kind) noexcept : device_(device), kind_(kind) {}
    void map_file(int physical, std::size_t bytes);

    Device& device_;
    const MemoryKind kind_;
    std::span<std::byte> bytes_, mapping_;
    int file_ = -1;
    std::uint64_t generation_ = 0;
};

/// Enters the memory where find_memory() sees it. Throws Refusal if it overlaps what is there.
std::byte* add_memory(std::shared_ptr<Memory> memory);
/// The memory that an address lies in, or null.
std::shared_ptr<Memory> find_memory(const void* address);
/// Takes out what begins at the address. Null if nothing does.
std::shared_ptr<Memory> remove_memory(const void* address);

}  // namespace guozhuang::emulated_cuda
