#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "engine/context.hpp"
#include "engine/control.hpp"
#include "engine/control_plane.hpp"
#include "engine/eager_calls.hpp"
#include "engine/execution.hpp"
#include "engine/executor.hpp"
#include "engine/life_cycle.hpp"
#include "engine/own_tensors.hpp"
#include "engine/pending.hpp"
#include "engine/pump.hpp"
#include "engine/stall_reporter.hpp"
#include "engine/submission_queue.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/negotiator.hpp"
#include "trace/activity.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::engine {

/// Coordinates one process set on this rank: takes requests, negotiates them with the other ranks
/// and executes the log. Public functions may be called from any thread.
///
/// One thread at a time *drives*: it receives and sends control messages (pump) and executes the
/// entries of the log, one after the other. It holds the engine's lock meanwhile. A caller that
/// waits drives; the coordinator thread drives when something is pending and no caller waits, and
/// sleeps otherwise. All threads wait at the rank's doorbell.
class Engine final : public ProgressSource,
                     public Pump,
                     public ExecutionListener,
                     public std::enable_shared_from_this<Engine> {
public:
    struct Dependencies {
        Context context;
        Control& control;
        Mail& mail;
        protocol::Negotiator::Options negotiator;
        StallLimits stalls = {};
        /// Null if all executors are added before the first request.
        DeviceProvider* provider = nullptr;
    };

    explicit Engine(const Dependencies& dependencies);
    ~Engine() override { stop(); }

    /// Sets how bundles of a device kind run. Call it before the first request of that kind. Throws
    /// Error(out_of_memory).
    void add_executor(DeviceKind kind, DeviceExecutor executor) {
        if (std::holds_alternative<std::shared_ptr<StreamExecutor>>(executor))
            queue_.start_to_release();
        else if (kind == DeviceKind::host)
            eager_calls_.set_backend(*std::get<Backend*>(executor));
        executor_.add(kind, std::move(executor));
    }
    /// Starts the coordinator thread. Without it nothing moves while no caller waits.
    void start();

    /// Takes a request. Throws Error: duplicate_name, not_initialised (closed), or what ended the
    /// job. `caller_waits`: the caller is about to drive, so the coordinator is not woken.
    /// For a send or receive of a tensor on a device it takes the memory in which the tensor is
    /// staged, and so may throw Error(out_of_memory) too, before another rank hears of it.
    std::shared_ptr<Pending> submit(Request&& request, bool caller_waits);

    /// Runs an allreduce of one host tensor at once, without submission and log, if all ranks of
    /// the set make the same call at about the same time and this rank has nothing else pending.
    /// Otherwise returns false and leaves the tensor untouched; a call without a name may have got
    /// its number, and the caller must submit it. Holds the engine's lock for as long as a thread
    /// spins, and while data moves. Throws what has ended the job meanwhile.
    bool run_eagerly(Call& call) {
        if (!eager_calls_.may_run()) return false;
        std::exception_ptr failure;
        const bool done = try_between_bundles([&] {
            mutex_.is_held();
            const bool is_done = !base::is_aborted(context_.doorbell) && log_.empty() &&
                                 life_.state() == LifeCycle::State::open &&
                                 eager_calls_.may_run() && eager_calls_.run(call, failure);
            if (failure) failure = abort(failure);  // so that no other thread drives on from there
            return is_done;
        });
        if (failure) {
            failure = fail_pending(failure);
            std::rethrow_exception(
                for_operation(failure, eager_calls_.request_of(call), life_.memory_is_on_loan()));
        }
        if (has_work())
            context_.ring(base::Sleepers::idle);  // which has left the engine to this call
        return done;
    }

    /// Takes back the number of such a call if it is not submitted after all.
    void return_number(OperationKind operation, std::uint64_t number) noexcept {
        queue_.return_number(operation, number);
    }

    bool drive_until(const std::function<bool()>& arrived, base::Deadline deadline) override;
    /// Completes operations that have ended; true if there were any. Called by every thread that
    /// drives or waits. Runs user deleters and log callbacks, which may call this library: so never
    /// call it with a lock held, nor on a stream's thread, because those calls may wait.
    bool complete_ended() noexcept GUOZHUANG_EXCLUDES(mutex_) {
        stalls_.log_warnings();
        return queue_.complete_ended();
    }

    /// Takes submissions, receives and sends control messages, and queues the entries of the log.
    bool pump() override;
    /// The part of pump() that sends nothing: after a failure here, other ranks would take a
    /// shutdown sent now for its cause.
    bool receive();

    /// For an owner of tensors that is about to be destroyed. Returns once no operation uses its
    /// memory: one that still waits for other ranks goes on with copies in the library's own
    /// memory, and without the owner's outputs; this waits for one whose data moves already, or for
    /// whose copies there is no memory. Throws what ended the job.
    void release_tensors(const OwnsTensors& owner);
    /// Runs `action` while no bundle of this engine moves on the host, and returns its result.
    /// Returns false at once if a bundle moves. If the action throws, no caller is woken: those
    /// that wait behind this thread look again on their own, after sleep_limit at the latest.
    template <class Action>
    bool try_between_bundles(const Action& action) {
        if (!mutex_.try_lock()) return false;
        bool result = false;
        {
            const base::Lock lock(mutex_, std::adopt_lock);
            result = action();
        }
        // A caller may have found the lock taken, and be waiting behind this thread.
        context_.ring(base::Sleepers::behind);
        return result;
    }

    /// Takes no more requests, and lets the other ranks know. Returns at once: the thread that
    /// drives sends the message.
    void shut_down(std::string_view reason, int culprit = -1) {
        life_.shut_down({.reason = std::string(reason), .culprit = culprit});
        context_.ring(base::Sleepers::idle);
    }
    /// Shuts down, and drives until every rank has shut down. Pending operations then are complete
    /// or have failed. Throws what ended the job.
    void close(std::string_view reason, int culprit = -1);
    /// Ends the coordinator thread and drains the streams; no thread drives any more. Operations
    /// that are still pending fail, so handles that outlive the session are complete. Later calls
    /// do nothing.
    void stop() noexcept;
    /// Once it has stopped: what calls throw from now on.
    void replace_cause(const std::exception_ptr& cause) noexcept { life_.replace_cause(cause); }
    /// True if the job ended while the transport may still access memory of this rank. The caller
    /// must never free that memory; the engine itself keeps the memory of its requests.
    bool left_memory_on_loan() const noexcept { return life_.memory_is_on_loan(); }
    /// Quits, for a process that is about to end: sends the other ranks the reason and does not
    /// wait for them.
    void quit(std::string_view reason, int culprit = -1) {
        life_.shut_down({.reason = std::string(reason), .at_once = true, .culprit = culprit});
        context_.ring(base::Sleepers::idle);
    }
    /// After quit(): waits until this rank has executed what the log held before its `quit` entry,
    /// on streams too, and its sends and receives have ended. Aborts the job if this has not
    /// happened by the deadline and other ranks may need this one.
    void drain_before_exit(base::Deadline deadline) noexcept;
    /// Ends the job for all ranks: fails all operations, stops all waits, throws the first cause.
    [[noreturn]] void end(const std::exception_ptr& cause) {
        std::rethrow_exception(fail_pending(abort(cause)));
    }
    /// See LifeCycle.
    std::exception_ptr failure_by_shutdown() const noexcept { return life_.failure_by_shutdown(); }
    /// How many times all ranks have joined.
    std::uint64_t joins() const { return queue_.joins(); }
    /// Whether some rank has quit: then not all ranks will close their transport.
    bool somebody_quit() const noexcept { return life_.somebody_quit(); }
    /// Whether every rank has shut down.
    bool has_ended_in_order() const noexcept { return life_.is_over() && !life_.somebody_quit(); }

private:
    class WaitingCaller;

    void on_enqueued(std::span<const std::shared_ptr<Pending>> operations) override {
        queue_.free_names(operations);
    }
    void on_end(std::span<std::shared_ptr<Pending>> operations,
                std::exception_ptr error) noexcept override {
        queue_.end(operations, std::move(error));
    }
    void let_go(std::shared_ptr<Owners> owners) noexcept override {
        queue_.let_go(std::move(owners));
    }
    void on_failure(const std::exception_ptr& error) override;

    // Driving.
    void coordinate();
    void nap(base::WaitLoop& wait_loop);
    void poll_briefly(base::WaitLoop& wait_loop);
    /// The outcome of an attempt to drive. `messages_move`: no progress, but sends or receives are
    /// in flight. `too_large`: the next entry is for another thread.
    enum class DriveResult { progressed, in_vain, messages_move, of_another, too_large };
    /// Returns true once `arrived()`, or false at the deadline. Meanwhile this thread drives
    /// whenever no other does. With `only_small` it leaves large bundles to the coordinator.
    bool wait(const std::function<bool()>& arrived, base::Deadline deadline,
              bool only_small = false);
    DriveResult drive_once(bool only_small) GUOZHUANG_REQUIRES(mutex_);
    DriveResult try_drive_once(bool only_small = false);
    bool has_work() const noexcept { return queue_.has_pending() || life_.is_shutting_down(); }
    bool has_caller() const noexcept {
        return waiting_callers_.load(std::memory_order_acquire) > 0 || eager_calls_.is_running();
    }

    bool take_submissions() GUOZHUANG_REQUIRES(mutex_);
    bool take_entries() GUOZHUANG_REQUIRES(mutex_) {
        control_plane_.take_entries(entries_);
        for (auto& entry : entries_) accept(std::move(entry));
        return !entries_.empty();
    }
    void check_stalls() GUOZHUANG_REQUIRES(mutex_);

    // Execution of the log.
    void accept(protocol::LogEntry&& entry) GUOZHUANG_REQUIRES(mutex_);
    bool is_due(const protocol::LogEntry& entry) const GUOZHUANG_REQUIRES(mutex_);
    void execute(protocol::LogEntry& entry) GUOZHUANG_REQUIRES(mutex_);
    void run(protocol::LogEntry& entry) GUOZHUANG_REQUIRES(mutex_);
    void end_join(protocol::LogEntry& entry) GUOZHUANG_REQUIRES(mutex_);
    void end_log(const protocol::LogEntry& entry) GUOZHUANG_REQUIRES(mutex_);
    void finish_log(bool somebody_quit) GUOZHUANG_REQUIRES(mutex_) {
        life_.end_log(somebody_quit);
        queue_.end_closing();
    }
    void fail_for_quit(Requests requests) GUOZHUANG_REQUIRES(mutex_) {
        queue_.end(requests, error_of(*quit_entry_, context_.group_ranks));
    }

    // The end of the job.
    /// Aborts the job for all ranks, including this one: from then on no thread drives. Returns the
    /// cause as an Error.
    std::exception_ptr abort(const std::exception_ptr& cause);
    void abort_for_quit();
    /// Notes the cause, and aborts the job for the other ranks.
    void notify_others(const std::exception_ptr& cause) noexcept;
    void take_last_news(const std::function<void()>& take) noexcept GUOZHUANG_REQUIRES(mutex_);
    /// Fails all operations with the first cause of the job's end, and returns it: `cause`, or one
    /// that was noted before.
    std::exception_ptr fail_pending(const std::exception_ptr& cause);

    std::shared_ptr<const OwnTensors> replace_tensors(Pending& pending, const OwnsTensors& owner);

    const Context context_;
    LifeCycle life_;
    SubmissionQueue queue_;
    Executor executor_;
    EagerCalls eager_calls_;

    base::Mutex mutex_;  ///< the thread that holds it drives
    SubmissionQueue::Taken taken_ GUOZHUANG_GUARDED_BY(mutex_);  ///< and not yet handled
    ControlPlane control_plane_ GUOZHUANG_GUARDED_BY(mutex_);
    std::vector<protocol::LogEntry> entries_ GUOZHUANG_GUARDED_BY(mutex_);  ///< not yet accepted
    StallReporter stalls_;  ///< only used by the thread that drives, except log_warnings()
    /// Arrived and not yet executed. Their items hold what this rank has submitted.
    std::deque<protocol::LogEntry> log_ GUOZHUANG_GUARDED_BY(mutex_);
    /// The `quit` entry that has ended the log, if a rank has quit.
    std::optional<protocol::LogEntry> quit_entry_ GUOZHUANG_GUARDED_BY(mutex_);

    std::atomic<int> waiting_callers_{0};  ///< they drive
    std::thread coordinator_;
};

}  // namespace guozhuang::engine
