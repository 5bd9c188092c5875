#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/wait.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"
#include "engine/backend.hpp"
#include "engine/completions.hpp"
#include "engine/context.hpp"
#include "engine/execution_listener.hpp"
#include "engine/message_slot.hpp"

namespace guozhuang::engine {

/// Runs bundles of tensors on one device, on its own communication stream. A bundle waits for its
/// tensors' events. Its handles get the event that marks its end as soon as it is enqueued, and are
/// complete when the stream has finished it.
class StreamExecutor final : public std::enable_shared_from_this<StreamExecutor> {
public:
    /// `device`: its index with the driver of the completions. Throws what the driver throws.
    StreamExecutor(int device, std::shared_ptr<StreamBackend> backend,
                   std::shared_ptr<Completions> completions);

    /// Enqueues the bundle, which points into the requests. Throws what the backend and the device
    /// throw, without telling the listener. Called by the thread that drives.
    void enqueue(Bundle bundle, Requests requests, const Context& context,
                 const std::shared_ptr<ExecutionListener>& listener);
    Device device() const noexcept { return stream_->ref().device; }
    /// A slot for a message of this many bytes, which keeps the executor. Throws what the driver
    /// throws. Any thread.
    std::shared_ptr<MessageSlot> take_slot(std::size_t bytes);
    /// A message is about to be copied: the executor is not idle until the result is released.
    std::shared_ptr<void> begin_use();
    // See StreamBackend.
    void release() noexcept {
        is_released_ = true;
        backend_->release();
    }
    void stop() noexcept { backend_->stop(); }
    /// Whether the stream is done with all bundles, and no message is being copied. Any thread.
    bool is_idle() const noexcept { return *pending_ == 0; }
    /// Waits until it is idle; false at the deadline.
    bool drain(base::Deadline deadline) noexcept;

private:
    class Ending;

    const int device_;
    const std::shared_ptr<StreamBackend> backend_;
    const std::shared_ptr<Completions> completions_;
    const std::shared_ptr<device::Driver> driver_;
    const std::shared_ptr<device::Stream> stream_;
    const device::PinnedWord ended_;  ///< counts the bundles that the stream is done with
    /// Counts the bundles that the stream has begun; written while a timeline is recorded.
    const device::PinnedWord begun_;
    std::uint32_t enqueued_ = 0;
    std::atomic<bool> is_released_{false};
    base::Clock::time_point last_seen_end_{};  ///< for the timeline; of the thread that completes
    MessageSlots message_slots_;
    /// The number of bundles that are not complete or are being completed, plus messages in use.
    const std::shared_ptr<std::atomic<int>> pending_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace guozhuang::engine
