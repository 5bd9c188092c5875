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
#include "protocol/description.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

using SharedTensors = std::shared_ptr<const std::vector<TensorView>>;
SharedTensors share(std::vector<TensorView> tensors);

/// What a caller submits.
struct Request {
    /// Callers submit `collective` requests; the engine sets the other kinds itself.
    enum class Kind : std::uint8_t {
        collective,
        point_to_point,  ///< a send or receive: the name says it all
        neutral,  ///< the neutral contribution of a rank that has joined: nobody waits for it
        closing   ///< the wait for all to close the session
    };
    Kind kind = Kind::collective;
    std::string name = {};  ///< empty: the engine numbers it
    /// whether the name may come again and so gets an id; false for what the engine numbers
    bool named = true;
    int peer = 0;  ///< of a send or receive: rank of the world. Set by the engine
    /// known if it has a deadline of its own
    base::Clock::time_point submitted = base::Clock::time_point::max();
    /// up to which it may wait for others
    base::Deadline deadline = base::no_deadline;
    protocol::SharedDescription description = share(protocol::Description{});
    SharedTensors tensors = share(std::vector<TensorView>{});
    std::vector<std::int64_t> splits = {};  ///< all_to_all
    std::shared_ptr<void> keep_alive = {};
    std::shared_ptr<device::Driver> device = {};  ///< of the tensors; null for plain host tensors
    /// the tensors' contents are there; null for plain host tensors
    std::shared_ptr<device::Event> ready = {};
    /// done in place of a bundle, by whoever drives, at its place in the log; never waits
    std::function<void()> action = {};

    /// "allreduce".
    std::string_view operation() const noexcept;
    /// For people: "allreduce 'grad7'".
    std::string label() const;
};

/// What an error that ends the job means for one operation: where a rank has died or quit, the text
/// names the operation too, and where messages could not be stopped it says that their memory is
/// not the caller's yet.
std::exception_ptr for_operation(const std::exception_ptr& error, const Request& request,
                                 bool memory_on_loan) noexcept;

/// Whoever can bring an operation forward while somebody waits for it.
class ProgressSource {
public:
    virtual ~ProgressSource() = default;
    /// Returns once `arrived()`, driving meanwhile; false if the deadline came first. A bundle may
    /// outlast a deadline: whoever has one leaves the driving to the coordinator thread. Throws
    /// what ended the job.
    virtual bool drive_until(const std::function<bool()>& arrived, base::Deadline deadline) = 0;
};

/// An operation on its way: what a Handle refers to. Thread-safe.
class Pending {
public:
    Pending(Request request, std::shared_ptr<ProgressSource> progress_source);

    /// Logs an error that nobody has asked for.
    ~Pending();
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    const Request& request() const noexcept { return request_; }
    /// Of an operation that has results: of each tensor; of a join one.
    Result& result(std::size_t tensor) noexcept { return results_[tensor]; }
    bool has_results() const noexcept { return !results_.empty(); }
    ProgressSource& progress_source() const noexcept { return *progress_source_; }

    bool enqueued() const noexcept {
        return state_.load(std::memory_order_acquire) >= State::enqueued;
    }
    bool has_ended() const noexcept { return ended_.load(); }
    bool complete() const noexcept {
        return state_.load(std::memory_order_acquire) == State::complete;
    }

    /// It goes on with other tensors, which `owner` keeps alive; `ready`: null, or when a device
    /// has their contents. By whoever drives, as long as its data does not move.
    void set_tensors(SharedTensors tensors, std::shared_ptr<device::Event> ready,
                     std::shared_ptr<void> owner) noexcept;
    /// Its work is on a communication stream and `done` marks its end. Called once, before the work
    /// can end.
    void set_enqueued(std::shared_ptr<device::Event> done);
    /// After enqueued(): null if it never was on a stream.
    const std::shared_ptr<device::Event>& done_event() const noexcept { return done_; }
    /// How it ended; a null error is success. False, and nothing, if it has ended already: a bundle
    /// on a stream may end while the job does.
    bool set_ended(const std::exception_ptr& error) noexcept;
    /// Where it is said that this rank waits for it, until it has ended.
    void set_published(trace::WaitingSlot* slot) noexcept;
    bool is_published() const noexcept {
        return published_.load(std::memory_order_relaxed) != nullptr;
    }
    /// Its end for those who wait. Releases what the request kept alive first, unless its memory is
    /// on loan: runs code of the user's, which may call this library. Once, after set_ended().
    void set_complete(bool memory_on_loan = false) noexcept;
    /// Whether this thread is in that code of the user's.
    static bool is_completing() noexcept;

    /// An exception has dropped a handle of it: the exception is the news, so a failure of the
    /// operation is logged for debugging only.
    void drop_by_exception() noexcept { dropped_by_exception_ = true; }
    /// After complete(): throws the operation's error if it has one.
    void rethrow() const;
    /// After complete(): the results, the first time; none, ever after.
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
    std::shared_ptr<Pending> next_;  ///< in the queue of those that have ended

    friend class EndedQueue;
};

/// Operations that have ended and are not complete yet, oldest first. Allocates nothing, since a
/// lack of memory may be what ends them. Thread-safe.
class EndedQueue {
public:
    void push(std::shared_ptr<Pending> pending) noexcept;
    /// Null if there is none, which costs little to ask.
    std::shared_ptr<Pending> pop() noexcept;

private:
    base::Mutex mutex_;
    std::shared_ptr<Pending> first_ GUOZHUANG_GUARDED_BY(mutex_);
    Pending* last_ GUOZHUANG_GUARDED_BY(mutex_) = nullptr;
    std::atomic<bool> empty_{true};
};

}  // namespace guozhuang::engine
