#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/completions.hpp"
#include "engine/context.hpp"
#include "engine/execution_listener.hpp"
#include "engine/message_slot.hpp"
#include "engine/pending.hpp"

namespace guozhuang::engine {

class StreamExecutor;

/// The payload of a send or receive whose tensor is on a device, staged in pinned memory, so that
/// messages never touch device memory. It is copied once: before it is sent, or after it has been
/// received. Only the thread that drives calls the functions that are not from Completion.
class StagedMessage final : public Completion, public std::enable_shared_from_this<StagedMessage> {
public:
    /// Takes pinned memory for this many bytes. Any thread. The listener keeps the context alive.
    /// Throws what the device throws.
    StagedMessage(std::shared_ptr<StreamExecutor> executor, std::size_t bytes,
                  const Context& context, std::shared_ptr<ExecutionListener> listener);

    /// The operation has been matched: from now on the executor is not idle until this message is
    /// destroyed.
    void begin();
    /// The pinned memory, as large as the tensor.
    std::span<std::byte> memory() const noexcept { return memory_; }
    /// Enqueues the copy from the request's tensor, when that is ready. Throws what the device
    /// throws.
    void copy_in(const Request& request);
    /// Enqueues the copy to the operation's tensor, and marks the operation enqueued. Throws what
    /// the device throws.
    void copy_out(Pending& pending);
    /// Whether the copy was enqueued, and the stream is done with it. Throws Error if the device
    /// has failed.
    bool is_copied() const;

    bool is_reached() noexcept override;
    int device() const noexcept override { return slot_->device; }
    void complete(const std::exception_ptr& failure) noexcept override;

private:
    void enqueue(const Request& request, const std::function<void(device::Stream&)>& copy);

    /// Destroyed last, so the thread that completes never destroys the executor.
    std::shared_ptr<void> in_use_;
    const std::shared_ptr<StreamExecutor> executor_;
    const std::shared_ptr<MessageSlot> slot_;
    const std::span<std::byte> memory_;
    const std::shared_ptr<ExecutionListener> listener_;
    const Context& context_;
    std::string name_;         ///< of the request, for errors: "send to 1"
    std::uint32_t count_ = 0;  ///< what the slot's word says after the copy
    /// The request's keep_alive. An operation that fails before the copy is done releases its own
    /// reference while the stream may still use the memory.
    std::shared_ptr<Owners> keep_alive_ = std::make_shared<Owners>();
    std::exception_ptr failure_;
    bool is_enqueued_ = false;  ///< without an error; the stream reaches the end either way
    std::atomic<bool> is_complete_{false};
};

}  // namespace guozhuang::engine
