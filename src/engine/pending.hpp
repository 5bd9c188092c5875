#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <guozhuang/handle.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "device/device.hpp"
#include "engine/shared_tensors.hpp"
#include "protocol/description.hpp"
#include "protocol/name.hpp"
#include "protocol/route.hpp"
#include "protocol/submitter.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

class StagedMessage;

/// Whether an owner owns the memory of these tensors of a request.
using OwnsTensors = std::function<bool(const SharedTensors&)>;

/// One operation, as its caller submits it.
struct Request {
    /// Callers submit the first two kinds; the engine makes the others itself.
    enum class Kind : std::uint8_t {
        collective,
        point_to_point,  ///< a send or receive: the name is its whole label
        neutral,         ///< the neutral contribution of a joined rank: nobody waits for it
        closing          ///< the wait until all ranks close the session
    };
    Kind kind = Kind::collective;
    protocol::Name name = {};  ///< empty: the engine makes one from a number
    /// Whether the name may be submitted again and so gets an id; false for names that the engine
    /// makes.
    bool named = true;
    std::uint64_t number = 0;    ///< of one without a name, if it has been taken before
    protocol::Route route = {};  ///< point_to_point
    /// When it was submitted; set only for an operation with its own deadline.
    base::Clock::time_point submitted = base::Clock::time_point::max();
    /// How long it may wait for other ranks.
    base::Deadline deadline = base::no_deadline;
    protocol::SharedDescription description = share(protocol::Description{});
    SharedTensors tensors = {};
    /// The caller's tensors for the results; empty: none. An output whose owner is gone has no
    /// dimensions.
    SharedTensors outputs = {};
    std::vector<std::int64_t> splits = {};  ///< all_to_all, reduce_scatter
    std::shared_ptr<void> keep_alive = {};
    std::shared_ptr<device::Driver> device = {};  ///< of the tensors; null for plain host tensors
    /// One event on each stream that produced the tensors' contents; empty for plain host tensors.
    std::vector<std::shared_ptr<device::Event>> ready = {};
    /// point_to_point, if the tensor is on a device and not empty; set by the engine.
    std::shared_ptr<StagedMessage> staged = {};
    /// Runs instead of a bundle, on the thread that drives, when the log entry is executed. Must
    /// not wait.
    std::function<void()> action = {};

    /// "allreduce".
    std::string_view operation() const noexcept;
    /// For messages: "allreduce 'grad7'".
    std::string label() const;
    /// Whether it uses the owner's memory.
    bool uses_memory_of(const OwnsTensors& owner) const {
        return owner(tensors) || (!outputs.empty() && owner(outputs));
    }
};

/// The error for one operation when `error` has ended the job. If a rank has died or quit, the text
/// also names the operation; if messages could not be stopped, it says that their memory is still
/// in use.
std::exception_ptr for_operation(const std::exception_ptr& error, const Request& request,
                                 bool memory_on_loan) noexcept;

/// Makes progress on an operation while a thread waits for it.
class ProgressSource {
public:
    virtual ~ProgressSource() = default;
    /// Drives until `arrived()`; returns false if the deadline comes first. A caller with a
    /// deadline leaves large bundles, which may outlast it, to the coordinator thread. Throws what
    /// ended the job.
    virtual bool drive_until(const std::function<bool()>& arrived, base::Deadline deadline) = 0;
};

/// An operation that was submitted, to which a Handle refers. Thread-safe.
class Pending : public protocol::Submitter {
public:
    Pending(Request&& request, std::shared_ptr<ProgressSource> progress_source);

    /// Logs the operation's error if nobody has seen it.
    ~Pending();
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    const Request& request() const noexcept { return request_; }
    /// The result of a tensor, for operations that have results. A join has one.
    Result& result(std::size_t tensor) noexcept { return results_[tensor]; }
    const Result& result(std::size_t tensor) const noexcept { return results_[tensor]; }
    bool has_results() const noexcept { return !results_.empty(); }
    /// Whether its end, or the end of its last handle, may free device memory.
    bool may_free_device_memory() const noexcept {
        const bool keeps = request_.keep_alive.use_count() > 0;  // even an owner without a pointer
        return request_.device && (keeps || has_results());
    }
    /// The caller's output for the result of a tensor; null if there is none, or its owner is gone.
    const TensorView* output(std::size_t tensor) const noexcept {
        const bool is_there = !request_.outputs.empty() && !request_.outputs[tensor].shape.empty();
        return is_there ? &request_.outputs[tensor] : nullptr;
    }
    ProgressSource& progress_source() const noexcept { return *progress_source_; }

    bool enqueued() const noexcept {
        return state_.load(std::memory_order_acquire) >= State::enqueued;
    }
    bool has_ended() const noexcept { return ended_.load(); }
    bool complete() const noexcept {
        return state_.load(std::memory_order_acquire) == State::complete;
    }

    /// Replaces the tensors; `owner` keeps the new ones alive, and `ready` is as in Request. Called
    /// by the thread that drives, while no data of this moves.
    void set_tensors(SharedTensors tensors, std::vector<std::shared_ptr<device::Event>> ready,
                     std::shared_ptr<void> owner) noexcept;
    /// Replaces the outputs. Called like set_tensors().
    void set_outputs(SharedTensors outputs) noexcept;
    /// Takes the request's `staged`, once.
    std::shared_ptr<StagedMessage> take_staged() noexcept { return std::move(request_.staged); }
    /// The work is enqueued on a communication stream, and `done` marks its end; null if the
    /// operation will fail there. Called once, before the work can end.
    void set_enqueued(std::shared_ptr<device::Event> done);
    /// After enqueued(): the event that marks its end; null if it never was on a stream, or will
    /// fail.
    const std::shared_ptr<device::Event>& done_event() const noexcept { return done_; }
    /// Ends the operation; a null error is success. Does nothing and returns false if it has ended
    /// already: a bundle on a stream may end at the same time as the job. One thread at a time.
    bool set_ended(const std::exception_ptr& error) noexcept;
    /// The slot in which this rank has published that it waits for this; it is freed at the end.
    void set_published(trace::WaitingSlot* slot) noexcept;
    bool is_published() const noexcept {
        return published_.load(std::memory_order_relaxed) != nullptr;
    }
    /// Completes the operation for those who wait, once, after set_ended(). First releases the
    /// request's keep_alive, unless `memory_on_loan`; this may run user code, which may call this
    /// library.
    void set_complete(bool memory_on_loan = false) noexcept;
    /// Whether this thread is releasing a keep_alive or Owners, which may run user code.
    static bool is_completing() noexcept;

    /// Called when an exception destroys a handle of this operation. The program then sees the
    /// exception, and a failure of the operation is logged at level debug only.
    void drop_by_exception() noexcept { dropped_by_exception_ = true; }
    /// After has_ended(): throws the operation's error if it has one.
    void rethrow() const;
    /// After complete(): the results; later calls return none.
    std::vector<Result> take_results() {
        return taken_.exchange(true) ? std::vector<Result>{} : std::move(results_);
    }

private:
    void unpublish() noexcept;

    enum class State { submitted, enqueued, complete };

    Request request_;
    std::shared_ptr<ProgressSource> progress_source_;
    std::vector<Result> results_;
    std::shared_ptr<device::Event> done_;
    std::exception_ptr error_;
    std::atomic<bool> ended_{false};
    std::atomic<State> state_{State::submitted};
    mutable std::atomic<bool> error_seen_{false};
    std::atomic<bool> taken_{false};
    std::atomic<bool> dropped_by_exception_{false};
    std::atomic<trace::WaitingSlot*> published_{nullptr};
    std::shared_ptr<Pending> next_;  ///< in the EndedQueue

    friend class EndedQueue;
};

/// Operations that have ended and are not complete yet, oldest first. Allocates nothing, because
/// they may have ended for lack of memory. Thread-safe.
class EndedQueue {
public:
    void push(std::shared_ptr<Pending> pending) noexcept;
    /// Returns null if it is empty; asking is cheap.
    std::shared_ptr<Pending> pop() noexcept;

private:
    base::Mutex mutex_;
    std::shared_ptr<Pending> first_ GUOZHUANG_GUARDED_BY(mutex_);
    Pending* last_ GUOZHUANG_GUARDED_BY(mutex_) = nullptr;
    std::atomic<bool> empty_{true};
};

/// Owners of memory, and other objects whose destructors may run user code.
struct Owners {
    std::vector<std::shared_ptr<void>> all;
    std::shared_ptr<Owners> next = {};  ///< in the ReleaseQueue
};

/// Hands owners from a thread that must not block to another thread, which releases them: their
/// destructors may run user code that waits for the device. Pushing allocates nothing. Thread-safe.
class ReleaseQueue {
public:
    void push(std::shared_ptr<Owners> owners) noexcept;
    /// Releases all owners; true if there were any. May run user code, which may call this library.
    bool release() noexcept;

private:
    std::shared_ptr<Owners> pop() noexcept;

    base::Mutex mutex_;
    std::shared_ptr<Owners> first_ GUOZHUANG_GUARDED_BY(mutex_);
    std::atomic<bool> empty_{true};
};

using Requests = std::vector<std::shared_ptr<Pending>>;

}  // namespace guozhuang::engine
