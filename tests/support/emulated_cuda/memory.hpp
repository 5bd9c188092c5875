#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "support/emulated_cuda/devices.hpp"

namespace guozhuang::emulated_cuda {

enum class MemoryKind { device, pool, mapped, managed, imported, pinned, registered };

/// Memory of a device, without an address.
class PhysicalMemory {
public:
    /// Throws Refusal.
    PhysicalMemory(Device& device, std::size_t bytes);
    ~PhysicalMemory();
    PhysicalMemory(const PhysicalMemory&) = delete;
    PhysicalMemory& operator=(const PhysicalMemory&) = delete;

    Device& device() const noexcept { return device_; }
    std::size_t bytes() const noexcept { return bytes_; }
    int file() const noexcept { return file_; }
    std::uint64_t generation() const noexcept { return generation_; }

private:
    void release() const noexcept;

    Device& device_;
    const std::size_t bytes_;
    const std::uint64_t generation_;
    int file_ = -1;
};

/// Memory that CUDA knows. Allocated memory is unmapped at the end of the object.
class Memory {
public:
    /// Throws Refusal, as make_host_memory() and import_memory() do.
    static std::shared_ptr<Memory> on_device(Device& device, std::size_t bytes, MemoryKind kind);
    /// Memory of the host, or managed memory, which both sides may touch.
    static std::shared_ptr<Memory> on_host(Device& device, std::size_t bytes, MemoryKind kind);
    static std::shared_ptr<Memory> registered(Device& device, std::span<std::byte> bytes);
    /// Maps memory of another process, whose file is open here, and which is closed by this.
    static std::shared_ptr<Memory> imported(Device& device, int physical, int file,
                                            std::size_t bytes);
    /// Physical memory at addresses that are taken already. Nobody may touch it before let_in().
    static std::shared_ptr<Memory> mapped(std::shared_ptr<const PhysicalMemory> physical,
                                          std::span<std::byte> at);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::span<std::byte> bytes() const noexcept { return bytes_; }
    MemoryKind kind() const noexcept { return kind_; }
    Device& device() const noexcept { return device_; }
    /// The physical memory behind memory of this process's devices, otherwise null.
    const PhysicalMemory* physical() const noexcept { return physical_.get(); }
    /// Only a device's threads may touch it.
    bool is_of_device() const noexcept { return kind_ <= MemoryKind::mapped || is_imported(); }
    bool is_imported() const noexcept { return kind_ == MemoryKind::imported; }
    bool is_of_host() const noexcept { return kind_ >= MemoryKind::pinned; }
    bool contains(std::span<const std::byte> range) const noexcept;
    /// Lets the device's threads touch it.
    void let_in() const noexcept;

private:
    Memory(Device& device, MemoryKind kind) noexcept : device_(device), kind_(kind) {}
    void map_file(int file, int device, std::size_t bytes, int how);

    Device& device_;
    std::shared_ptr<const PhysicalMemory> physical_;
    const MemoryKind kind_;
    std::span<std::byte> bytes_, mapping_;
    int imported_file_ = -1;
};

/// Whether the range, which begins in this memory, lies in it, or in mappings one after the other.
bool is_covered(const Memory& first, std::span<const std::byte> range);

/// Enters the memory where find_memory() sees it. Throws Refusal if it overlaps other memory.
std::byte* add_memory(std::shared_ptr<Memory> memory);
/// The memory that an address lies in, or null.
std::shared_ptr<Memory> find_memory(const void* address);
/// Takes out the memory that begins at the address. Null if there is none.
std::shared_ptr<Memory> remove_memory(const void* address);

/// Addresses of the device for somebody's own mappings. Throws Refusal.
std::span<std::byte> take_addresses(std::size_t bytes);
void give_back_addresses(std::span<std::byte> taken);

}  // namespace guozhuang::emulated_cuda
