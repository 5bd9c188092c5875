#include "engine/message_slot.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace guozhuang::engine {
namespace {

constexpr std::size_t smallest_slot = 4096;

/// The largest messages are not rounded up, for want of a larger power of two.
std::size_t slot_size(std::size_t bytes) {
    constexpr auto largest_power = ~(~std::size_t{0} >> 1);
    return bytes > largest_power ? bytes : std::bit_ceil(std::max(bytes, smallest_slot));
}

}  // namespace

MessageSlot::MessageSlot(std::shared_ptr<device::Driver> of_driver, int of_device,
                         std::shared_ptr<Completions> of_completions, std::size_t bytes)
    : driver(std::move(of_driver)),
      device(of_device),
      completions(std::move(of_completions)),
      stream(driver->make_stream(device)),
      pinned(driver, device, bytes),
      copied(driver, device) {}

MessageSlots::MessageSlots(std::shared_ptr<device::Driver> driver, int device,
                           std::shared_ptr<Completions> completions)
    : driver_(std::move(driver)), device_(device), completions_(std::move(completions)) {}

MessageSlot& MessageSlots::take(std::size_t bytes) {
    const auto size = slot_size(bytes);
    if (auto* const kept = take_kept(size)) return *kept;
    // Without the lock: allocating may wait for the device, and who gives back may not.
    auto made = std::make_unique<MessageSlot>(driver_, device_, completions_, size);
    made->is_taken = true;
    const base::Lock lock(mutex_);
    return *slots_.emplace_back(std::move(made));
}

/// Null if none of that size is free.
MessageSlot* MessageSlots::take_kept(std::size_t size) {
    const base::Lock lock(mutex_);
    for (const auto& slot : slots_) {
        if (slot->is_taken || slot->pinned.memory().size() != size) continue;
        slot->is_taken = true;
        return slot.get();
    }
    return nullptr;
}

void MessageSlots::give_back(MessageSlot& slot) noexcept {
    const base::Lock lock(mutex_);
    slot.is_taken = false;
}

}  // namespace guozhuang::engine
