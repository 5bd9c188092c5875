#pragma once

#include <memory>
#include <span>

#include "device/device.hpp"

namespace guozhuang::device {

/// Memory that the last owner releases, once no stream uses it.
struct OwnedMemory {
    std::span<std::byte> memory;
    std::shared_ptr<void> owner;
};

/// Device memory. Throws what Driver::allocate throws.
inline OwnedMemory allocate_owned(const std::shared_ptr<Driver>& driver, int device,
                                  std::size_t bytes) {
    const auto memory = driver->allocate(device, bytes);
    return {memory,
            {memory.data(), [driver, device, memory](void*) { driver->release(device, memory); }}};
}

/// Pinned host memory. Throws what Driver::allocate_pinned throws.
inline OwnedMemory allocate_pinned(const std::shared_ptr<Driver>& driver, int device,
                                   std::size_t bytes) {
    const auto memory = driver->allocate_pinned(device, bytes);
    return {memory, {memory.data(), [driver, device, memory](void*) {
                         driver->release_pinned(device, memory);
                     }}};
}

/// Another rank's device memory, at the address where this rank's device reaches it. Throws what
/// MemorySharing::open throws.
inline OwnedMemory open_owned(const std::shared_ptr<Driver>& driver, int device,
                              const MemoryOffer& offer) {
    const auto memory = driver->sharing().open(device, offer);
    return {memory, {memory.data(), [driver, device, offer, memory](void*) {
                         driver->sharing().close(device, offer, memory);
                     }}};
}

/// A Word in its own pinned memory, initially 0.
class PinnedWord {
public:
    PinnedWord(const std::shared_ptr<Driver>& driver, int device)
        : memory_(allocate_pinned(driver, device, sizeof(Word))),
          word_(*new(memory_.memory.data()) Word(0)) {}

    Word& operator*() const noexcept { return word_; }

private:
    OwnedMemory memory_;
    Word& word_;
};

}  // namespace guozhuang::device
