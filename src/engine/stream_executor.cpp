#include "engine/stream_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/enqueued_bundle.hpp"
#include "engine/execution.hpp"
#include "engine/outputs.hpp"

namespace guozhuang::engine {

/// The timeline slice of a bundle that a stream moves, from the values of its words.
class StreamSlice {
public:
    StreamSlice(const Context& context, const StreamRef& stream, const Bundle& bundle)
        : timeline_(context.timeline),
          row_(fmt::format("stream of {} {}{}{}", name_of(stream.device.kind), stream.device.index,
                           context.set ? ", " : "", context.set ? *context.set : "")),
          facts_(facts_of(bundle, context.set)) {}

    void see(bool begun, bool ended) noexcept {
        if (!begun) return;
        const auto now = base::Clock::now();
        if (!from_) from_ = now;
        if (ended) to_ = now;
    }
    /// A bundle that has not ended leaves no slice. `free_from`: when the previous one was seen to
    /// have ended, which may be after this one was seen to have begun.
    void record(base::Clock::time_point& free_from) noexcept {
        if (!to_) return;
        timeline_->add_slice(row_, "stream", {std::max(*from_, free_from), *to_}, facts_);
        free_from = *to_;
    }

private:
    const std::shared_ptr<trace::Timeline> timeline_;
    const std::string row_;
    const trace::TimelineFacts facts_;
    std::optional<base::Clock::time_point> from_, to_;
};

/// The end of one bundle. It keeps the executor, which the stream's work needs, and is pending
/// until it releases it. So the completing thread, which the executor owns, never destroys the
/// executor.
class StreamExecutor::Ending final : public Completion {
public:
    Ending(std::shared_ptr<StreamExecutor> executor, std::shared_ptr<EnqueuedBundle> bundle,
           std::uint32_t count, std::optional<StreamSlice> slice)
        : executor_(std::move(executor)),
          bundle_(std::move(bundle)),
          count_(count),
          slice_(std::move(slice)) {
        ++*executor_->pending_;
    }
    ~Ending() override {
        const auto pending = executor_->pending_;
        executor_.reset();
        --*pending;
    }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;

    /// After a release the results may be garbage: the bundle then ends only once this rank knows
    /// why the job is over.
    bool is_reached() noexcept override {
        auto& backend = *executor_->backend_;
        const bool ended = has_come(executor_->ended_);  // first: an ended bundle has begun
        if (slice_) slice_->see(has_come(executor_->begun_), ended);
        if (ended) return !backend.was_released() || bundle_->is_job_over();
        if (executor_->is_released_) backend.release();
        return false;
    }
    int device() const noexcept override { return executor_->device_; }
    void complete(const std::exception_ptr& failure) noexcept override {
        if (slice_) slice_->record(executor_->last_seen_end_);
        const bool may_be_rubbish =
            !failure && executor_->backend_->was_released() && bundle_->is_job_over();
        const auto cause = may_be_rubbish ? bundle_->end_of_job() : failure;
        EnqueuedBundle::end(std::move(bundle_), cause);
    }

private:
    bool has_come(const device::PinnedWord& word) const noexcept {
        return device::has_reached((*word).load(std::memory_order_acquire), count_);
    }

    std::shared_ptr<StreamExecutor> executor_;
    std::shared_ptr<EnqueuedBundle> bundle_;
    const std::uint32_t count_;
    std::optional<StreamSlice> slice_;  ///< if a timeline is recorded
};

StreamExecutor::StreamExecutor(int device, std::shared_ptr<StreamBackend> backend,
                               std::shared_ptr<Completions> completions)
    : device_(device),
      backend_(std::move(backend)),
      completions_(std::move(completions)),
      driver_(completions_->driver()),
      stream_(driver_->make_stream(device)),
      ended_(driver_, device),
      begun_(driver_, device),
      message_slots_(device, completions_) {}

/// Registers the end before it enqueues anything. If enqueueing fails, the stream still reaches the
/// end, as long as the device is healthy; the operations then fail, since not all of their work is
/// on the stream.
void StreamExecutor::enqueue(Bundle bundle, Requests requests, const Context& context,
                             const std::shared_ptr<ExecutionListener>& listener) {
    auto& events = *stream_;
    const auto enqueued =
        std::make_shared<EnqueuedBundle>(std::move(bundle), std::move(requests), context, listener);
    std::optional<StreamSlice> slice;
    if (context.timeline->on()) slice.emplace(context, stream_->ref(), enqueued->bundle());
    const bool is_timed = slice.has_value();
    completions_->add(
        std::make_shared<Ending>(shared_from_this(), enqueued, ++enqueued_, std::move(slice)));
    const auto write_end = [&] { driver_->write(events, *ended_, enqueued_); };
    std::shared_ptr<const void> prepared;
    try {
        prepared = driver_->prepare_calls(device_);
        for (const auto& pending : enqueued->requests())
            for (const auto& ready : pending->request().ready) events.wait(ready);
        if (is_timed) driver_->write(events, *begun_, enqueued_);
        backend_->enqueue(enqueued, events);
        const auto done = events.record();
        // First, because threads that have waited for the enqueueing may submit the names again at
        // once.
        listener->on_enqueued(enqueued->requests());
        for (const auto& pending : enqueued->requests())
            pending->set_enqueued(output_mismatch(*pending, context) ? nullptr : done);
    } catch (...) {
        enqueued->refuse(std::current_exception());
        try {
            write_end();
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error is thrown
        }
        throw;
    }
    write_end();
    context.ring(base::Sleepers::idle);
}

std::shared_ptr<MessageSlot> StreamExecutor::take_slot(std::size_t bytes) {
    return {&message_slots_.take(bytes), [executor = shared_from_this()](MessageSlot* slot) {
                executor->message_slots_.give_back(*slot);
            }};
}

std::shared_ptr<void> StreamExecutor::begin_use() {
    ++*pending_;
    return {nullptr, [pending = pending_](void*) { --*pending; }};
}

bool StreamExecutor::drain(base::Deadline deadline) noexcept {
    return completions_->wait_until([this] { return is_idle(); }, deadline);
}

}  // namespace guozhuang::engine
