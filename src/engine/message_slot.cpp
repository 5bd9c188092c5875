#include "engine/message_slot.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace guozhuang::engine {
namespace {

constexpr std::size_t smallest_slot = 4096;

constexpr bool is_large(std::size_t bytes) noexcept {
    return bytes > MessageSlots::largest_rounded_bytes;
}

std::size_t slot_size(std::size_t bytes) noexcept {
    return is_large(bytes) ? bytes : std::bit_ceil(std::max(bytes, smallest_slot));
}

}  // namespace

MessageSlot::MessageSlot(int of_device, const std::shared_ptr<Completions>& its_completions,
                         std::size_t bytes)
    : device(of_device),
      completions(its_completions),
      driver(completions->driver()),
      pinned(device::allocate_pinned(driver, device, bytes)),
      copied(driver, device) {}

MessageSlots::MessageSlots(int device, std::shared_ptr<Completions> completions)
    : device_(device), completions_(std::move(completions)) {}

MessageSlot& MessageSlots::take(std::size_t bytes) {
    auto stream = take_stream();
    Slots too_small;
    {
        const base::Lock lock(mutex_);
        if (auto* const kept = take_kept(bytes)) {
            kept->stream = std::move(stream);
            return *kept;
        }
        if (is_large(bytes)) too_small = remove_large();
    }
    // Without the lock: allocating and freeing may wait for the device, and who gives back may not.
    too_small.clear();
    auto made = std::make_unique<MessageSlot>(device_, completions_, slot_size(bytes));
    made->stream = std::move(stream);
    made->is_taken = true;
    const base::Lock lock(mutex_);
    return *slots_.emplace_back(std::move(made));
}

std::shared_ptr<device::Stream> MessageSlots::take_stream() {
    {
        const base::Lock lock(mutex_);
        if (!free_streams_.empty()) {
            auto stream = std::move(free_streams_.back());
            free_streams_.pop_back();
            return stream;
        }
    }
    auto stream = completions_->driver()->make_stream(device_);
    const base::Lock lock(mutex_);
    free_streams_.reserve(++streams_);  // so giving back never allocates
    return stream;
}

/// Null if none that fits is free.
MessageSlot* MessageSlots::take_kept(std::size_t bytes) {
    for (const auto& slot : slots_) {
        const auto size = slot->pinned.memory.size();
        if (slot->is_taken || (is_large(bytes) ? size < bytes : size != slot_size(bytes))) continue;
        slot->is_taken = true;
        return slot.get();
    }
    return nullptr;
}

/// Removes the large ones that are free.
MessageSlots::Slots MessageSlots::remove_large() {
    const auto kept = std::partition(slots_.begin(), slots_.end(), [](const auto& slot) {
        return slot->is_taken || !is_large(slot->pinned.memory.size());
    });
    Slots removed(std::make_move_iterator(kept), std::make_move_iterator(slots_.end()));
    slots_.erase(kept, slots_.end());
    return removed;
}

void MessageSlots::give_back(MessageSlot& slot) noexcept {
    const base::Lock lock(mutex_);
    free_streams_.push_back(std::move(slot.stream));
    slot.is_taken = false;
}

}  // namespace guozhuang::engine
