#pragma once

#include <memory>
#include <span>
#include <utility>

#include "device/device.hpp"

namespace guozhuang::device {

/// Pinned memory of the host, released at the end. No stream may still use it then.
class PinnedMemory {
public:
    PinnedMemory() = default;  ///< none
    /// Throws what Driver::allocate_pinned throws.
    PinnedMemory(std::shared_ptr<Driver> driver, int device, std::size_t bytes)
        : driver_(std::move(driver)),
          device_(device),
          memory_(driver_->allocate_pinned(device, bytes)) {}
    ~PinnedMemory() {
        if (driver_) driver_->release_pinned(device_, memory_);
    }
    PinnedMemory(PinnedMemory&& other) noexcept
        : driver_(std::move(other.driver_)),
          device_(other.device_),
          memory_(std::exchange(other.memory_, {})) {}
    PinnedMemory& operator=(PinnedMemory&& other) noexcept {
        std::swap(driver_, other.driver_);
        std::swap(device_, other.device_);
        std::swap(memory_, other.memory_);
        return *this;
    }

    std::span<std::byte> memory() const noexcept { return memory_; }

private:
    std::shared_ptr<Driver> driver_;
    int device_ = 0;
    std::span<std::byte> memory_;
};

/// Memory of a device. The last owner releases it, when no stream uses it any more.
struct DeviceMemory {
    std::span<std::byte> memory;
    std::shared_ptr<void> owner;
};

/// Throws what Driver::allocate throws.
inline DeviceMemory allocate_owned(const std::shared_ptr<Driver>& driver, int device,
                                   std::size_t bytes) {
    const auto memory = driver->allocate(device, bytes);
    return {memory,
            {memory.data(), [driver, device, memory](void*) { driver->release(device, memory); }}};
}

/// Another rank's memory on its device, as this one's device reaches it. No stream may still use it
/// at the end.
class OpenedMemory {
public:
    /// Throws what MemorySharing::open throws.
    OpenedMemory(std::shared_ptr<Driver> driver, int device, const MemoryOffer& offer)
        : driver_(std::move(driver)),
          device_(device),
          offer_(offer),
          memory_(driver_->sharing().open(device, offer)) {}
    ~OpenedMemory() {
        if (driver_) driver_->sharing().close(device_, offer_, memory_);
    }
    OpenedMemory(OpenedMemory&&) noexcept = default;
    OpenedMemory& operator=(OpenedMemory&&) = delete;

    std::span<std::byte> memory() const noexcept { return memory_; }

private:
    std::shared_ptr<Driver> driver_;
    int device_;
    MemoryOffer offer_;
    std::span<std::byte> memory_;
};

/// A Word in pinned memory of its own, 0 at first.
class PinnedWord {
public:
    PinnedWord(std::shared_ptr<Driver> driver, int device)
        : memory_(std::move(driver), device, sizeof(Word)),
          word_(*new(memory_.memory().data()) Word(0)) {}

    Word& operator*() const noexcept { return word_; }

private:
    PinnedMemory memory_;
    Word& word_;
};

}  // namespace guozhuang::device
