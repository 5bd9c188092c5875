#include "engine/staged_message.hpp"

#include <guozhuang/error.hpp>
#include <utility>

#include "engine/execution.hpp"
#include "engine/stream_executor.hpp"

namespace guozhuang::engine {

StagedMessage::StagedMessage(std::shared_ptr<StreamExecutor> executor, std::size_t bytes,
                             const Context& context, std::shared_ptr<ExecutionListener> listener)
    : executor_(std::move(executor)),
      slot_(executor_->take_slot(bytes)),
      memory_(slot_->pinned.memory.first(bytes)),
      listener_(std::move(listener)),
      context_(context) {}

void StagedMessage::begin() {
    in_use_ = executor_->begin_use();
}

void StagedMessage::copy_in(const Request& request) {
    enqueue(request, [&](device::Stream& stream) {
        slot_->driver->copy(stream, memory_, request.tensors.front().memory());
    });
}

void StagedMessage::copy_out(Pending& pending) {
    enqueue(pending.request(), [&](device::Stream& stream) {
        slot_->driver->copy(stream, pending.request().tensors.front().memory(), memory_);
        pending.set_enqueued(stream.record());
    });
    context_.ring(base::Sleepers::idle);
}

/// Registers the end before it enqueues anything. If enqueueing fails, the stream still reaches the
/// end, as long as the device is healthy.
void StagedMessage::enqueue(const Request& request,
                            const std::function<void(device::Stream&)>& copy) {
    auto& stream = *slot_->stream;
    keep_alive_->all.push_back(request.keep_alive);
    name_ = request.name;
    count_ = ++slot_->copies;
    slot_->completions->add(shared_from_this());
    const auto write_end = [&] { slot_->driver->write(stream, *slot_->copied, count_); };
    try {
        for (const auto& ready : request.ready) stream.wait(ready);
        copy(stream);
    } catch (...) {
        try {
            write_end();
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error is thrown
        }
        std::rethrow_exception(
            as_error(std::current_exception(), {.operation = name_}, context_.rank));
    }
    write_end();
    is_enqueued_ = true;
}

bool StagedMessage::is_copied() const {
    if (!is_enqueued_ || !is_complete_.load(std::memory_order_acquire)) return false;
    if (failure_) std::rethrow_exception(failure_);
    return true;
}

bool StagedMessage::is_reached() noexcept {
    return device::has_reached((*slot_->copied).load(std::memory_order_acquire), count_);
}

void StagedMessage::complete(const std::exception_ptr& failure) noexcept {
    listener_->let_go(std::move(keep_alive_));
    if (failure) failure_ = as_error(failure, {.operation = name_}, context_.rank);
    is_complete_.store(true, std::memory_order_release);
    context_.ring(base::Sleepers::idle);
}

}  // namespace guozhuang::engine
