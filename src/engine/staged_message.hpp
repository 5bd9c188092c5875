#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>

#include "engine/completions.hpp"
#include "engine/context.hpp"
#include "engine/message_slot.hpp"
#include "engine/pending.hpp"
#include "engine/stream_executor.hpp"

namespace guozhuang::engine {

/// The payload of a send or receive whose tensor is on a device, staged in pinned memory, so that
/// messages never touch the device's. It is copied once: before it is sent, or after it has been
/// received. The thread that drives calls everything but what Completion has.
class StagedMessage final : public Completion, public std::enable_shared_from_this<StagedMessage> {
public:
    /// The operation keeps the engine alive, whose context this is.
    StagedMessage(std::shared_ptr<StreamExecutor> executor, std::shared_ptr<Pending> pending,
                  const Context& context);

    /// The operation has been matched: takes the pinned memory. Throws what the device throws.
    void begin();
    /// The pinned memory, as large as the tensor.
    std::span<std::byte> memory() const noexcept { return memory_; }
    /// Enqueues the copy from the tensor, when that is ready. Throws what the device throws.
    void copy_in();
    /// Enqueues the copy to the tensor, and marks the operation enqueued. Throws what the device
    /// throws.
    void copy_out();
    /// Whether the stream is done with the copy. Throws Error if the device has failed.
    bool is_copied() const;

    bool is_reached() const noexcept override;
    int device() const noexcept override { return slot_->device; }
    void complete(const std::exception_ptr& failure) noexcept override;

private:
    void enqueue(std::span<std::byte> to, std::span<const std::byte> from, bool marks_enqueued);

    /// Only until begin(): then the slot keeps it, which alone may let go of it on any thread.
    std::shared_ptr<StreamExecutor> executor_;
    const std::shared_ptr<Pending> pending_;
    const Context& context_;
    std::shared_ptr<MessageSlot> slot_;
    std::span<std::byte> memory_;
    std::uint32_t count_ = 0;  ///< what the slot's word says after the copy
    /// What the request keeps alive. If the operation fails before the copy is done, its handles
    /// let go of that, and the stream may still use it.
    std::shared_ptr<void> keep_alive_;
    std::exception_ptr failure_;
    std::atomic<bool> is_complete_{false};
};

}  // namespace guozhuang::engine
