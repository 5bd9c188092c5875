#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"
#include "engine/completions.hpp"

namespace guozhuang::engine {

/// Pinned memory that stages one message of a device tensor, and a stream that copies it. No other
/// message uses the stream meanwhile, so no message waits behind one whose tensor is not ready.
struct MessageSlot {
    /// Throws what the driver throws.
    MessageSlot(int device, const std::shared_ptr<Completions>& completions, std::size_t bytes);

    const int device;
    const std::shared_ptr<Completions> completions;
    const std::shared_ptr<device::Driver> driver;  ///< of the completions
    const device::OwnedMemory pinned;
    const device::PinnedWord copied;         ///< counts the copies that the stream is done with
    std::uint32_t copies = 0;                ///< that were enqueued; by the thread that drives
    std::shared_ptr<device::Stream> stream;  ///< while it is taken
    bool is_taken = false;                   ///< guarded by the lock of MessageSlots
};

/// The slots of a device. They are kept, since allocating pinned memory may wait for the device,
/// and freeing it does. Sizes are powers of two, so that a repeated size finds a slot. Larger slots
/// are not rounded up: a message takes any that is large enough; if there is none, a new one
/// replaces those that are too small. There are only as many streams as messages at once: beyond a
/// few, streams of a GPU share queues, where one that is held up holds up others. Thread-safe.
class MessageSlots {
public:
    static constexpr std::size_t largest_rounded_bytes = std::size_t{64} << 20;

    MessageSlots(int device, std::shared_ptr<Completions> completions);

    /// A slot for this many bytes, to be given back. Throws what the driver throws.
    MessageSlot& take(std::size_t bytes);
    void give_back(MessageSlot& slot) noexcept;

private:
    using Slots = std::vector<std::unique_ptr<MessageSlot>>;

    MessageSlot* take_kept(std::size_t bytes) GUOZHUANG_REQUIRES(mutex_);
    Slots remove_large() GUOZHUANG_REQUIRES(mutex_);
    std::shared_ptr<device::Stream> take_stream();

    const int device_;
    const std::shared_ptr<Completions> completions_;
    base::Mutex mutex_;
    Slots slots_ GUOZHUANG_GUARDED_BY(mutex_);
    std::size_t streams_ GUOZHUANG_GUARDED_BY(mutex_) = 0;  ///< that were made
    std::vector<std::shared_ptr<device::Stream>> free_streams_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::engine
