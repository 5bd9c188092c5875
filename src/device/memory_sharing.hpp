#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace guozhuang::device {

/// Identifies a physical device, whatever index a process has for it.
using DeviceId = std::array<std::byte, 16>;

/// Device memory that a rank offers to others. Plain bytes, sent as they are.
struct MemoryOffer {
    std::uint64_t process = 0;  ///< that owns the memory; see own_process()
    std::uint64_t address = 0, bytes = 0;
    std::int32_t device = 0;  ///< its index in that process
    std::array<std::byte, 64> handle{};
};

/// How ranks reach each other's device memory, and words in shared host memory. Thread-safe.
class MemorySharing {
public:
    virtual ~MemorySharing() = default;
    virtual DeviceId id_of(int device) const = 0;
    /// Offers memory that Driver::allocate() returned. A rank that opens it must close it before
    /// the owner releases it. Throws Error(unavailable).
    virtual MemoryOffer offer(int device, std::span<std::byte> memory) = 0;
    /// The memory at the address where streams of this device reach it; in the process that offers
    /// it, the memory itself. Throws Error(unavailable) if they cannot.
    virtual std::span<std::byte> open(int device, const MemoryOffer& offer) = 0;
    /// Ends what open() returned for the offer. No stream may still use it.
    virtual void close(int device, const MemoryOffer& offer,
                       std::span<std::byte> memory) noexcept = 0;
    /// Lets the streams of all devices use words in this host memory, whole pages, by their
    /// addresses here. Throws Error(unavailable) if they cannot.
    virtual void register_host(int device, std::span<std::byte> memory) = 0;
    virtual void unregister_host(int device, std::span<std::byte> memory) noexcept = 0;
};

/// This process among all that share memory.
inline std::uint64_t own_process() {
    static const std::uint64_t number = [] {
        std::random_device random;
        return (std::uint64_t{random()} << 32) | random();
    }();
    return number;
}

}  // namespace guozhuang::device
