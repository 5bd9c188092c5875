#include "engine/staged_message.hpp"

#include <guozhuang/error.hpp>
#include <utility>

namespace guozhuang::engine {

StagedMessage::StagedMessage(std::shared_ptr<StreamExecutor> executor,
                             std::shared_ptr<Pending> pending, const Context& context)
    : executor_(std::move(executor)), pending_(std::move(pending)), context_(context) {}

void StagedMessage::begin() {
    const auto bytes = pending_->request().tensors->front().bytes();
    slot_ = std::exchange(executor_, nullptr)->take_slot(bytes);
    memory_ = slot_->pinned.memory().first(bytes);
}

void StagedMessage::copy_in() {
    enqueue(memory_, pending_->request().tensors->front().memory(), false);
}

void StagedMessage::copy_out() {
    enqueue(pending_->request().tensors->front().memory(), memory_, true);
    base::ring_local(context_.doorbell, context_.wait.audience);
}

/// The end is awaited before anything is enqueued. If enqueueing fails, the stream still comes to
/// it, as long as the device is healthy.
void StagedMessage::enqueue(std::span<std::byte> to, std::span<const std::byte> from,
                            bool marks_enqueued) {
    const auto& request = pending_->request();
    auto& stream = *slot_->stream;
    keep_alive_ = request.keep_alive;
    count_ = ++slot_->copies;
    slot_->completions->add(shared_from_this());
    const auto write_end = [&] { slot_->driver->write(stream, *slot_->copied, count_); };
    try {
        if (request.ready) stream.wait(request.ready);
        slot_->driver->copy(stream, to, from);
        if (marks_enqueued) pending_->set_enqueued(stream.record());
    } catch (...) {
        try {
            write_end();
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error is thrown
        }
        throw;
    }
    write_end();
}

bool StagedMessage::is_copied() const {
    if (!is_complete_.load(std::memory_order_acquire)) return false;
    if (failure_) std::rethrow_exception(failure_);
    return true;
}

bool StagedMessage::is_reached() const noexcept {
    return device::has_reached((*slot_->copied).load(std::memory_order_acquire), count_);
}

void StagedMessage::complete(const std::exception_ptr& failure) noexcept {
    keep_alive_.reset();
    failure_ = failure;
    is_complete_.store(true, std::memory_order_release);
    base::ring_local(context_.doorbell, context_.wait.audience);
}

}  // namespace guozhuang::engine
