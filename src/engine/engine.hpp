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
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "engine/context.hpp"
#include "engine/control.hpp"
#include "engine/control_plane.hpp"
#include "engine/executor.hpp"
#include "engine/life_cycle.hpp"
#include "engine/own_tensors.hpp"
#include "engine/pending.hpp"
#include "engine/stall_reporter.hpp"
#include "engine/submission_queue.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/negotiator.hpp"
#include "trace/activity.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::engine {

/// One process set's coordination on this rank: takes requests, negotiates them with the other
/// ranks, executes the log.
///
/// Somebody *drives*: receives and sends control messages (pump) and executes entries of the log,
/// one after the other. The engine's lock says who. A caller that waits drives itself; the
/// coordinator thread drives when something is pending and no caller does, and sleeps otherwise.
/// Everybody waits on the rank's doorbell. Public functions may be called from any thread.
class Engine final : public ProgressSource,
                     public ExecutionListener,
                     public std::enable_shared_from_this<Engine> {
public:
    struct Dependencies {
        Control& control;
        Mail& mail;
        base::Doorbell& doorbell;
        trace::Activity& activity;  ///< lives as long as the doorbell
        base::WaitSettings wait;
        protocol::Negotiator::Options negotiator;
        StallLimits stalls = {};
        /// keeps the doorbell alive: callers may still wait there when all else is gone
        std::shared_ptr<JobControl> job;
        /// the rank's
        std::shared_ptr<trace::Timeline> timeline = std::make_shared<trace::Timeline>();
        /// null: all executors are added before the first request
        DeviceProvider* provider = nullptr;
    };

    explicit Engine(const Dependencies& dependencies);
    ~Engine() override;

    /// How bundles of a device kind are run; before the first request on that kind.
    void add_executor(DeviceKind kind, DeviceExecutor executor) {
        executor_.add(kind, std::move(executor));
    }
    /// Starts the coordinator thread. Without it whatever is pending rests while no caller waits.
    void start();

    /// Takes a request. Throws Error: duplicate_name, not_initialised (closed), or what ended the
    /// job. `caller_waits`: the caller will drive, so the coordinator is not woken.
    std::shared_ptr<Pending> submit(Request request, bool caller_waits);
    /// The same for a point-to-point operation. The request's name is for people only.
    std::shared_ptr<Pending> submit(Request request, const Route& route, bool caller_waits);

    bool drive_until(const std::function<bool()>& arrived, base::Deadline deadline) override;
    /// Completes what has ended; true if there was anything. Runs deleters and log callbacks of the
    /// user's, which may call this library: so never with a lock held, and not on a stream's
    /// thread, which must be free for what they call. Whoever drives or waits does it.
    bool complete_ended() noexcept GUOZHUANG_EXCLUDES(mutex_);

    /// Receives and sends control messages; true if there was anything to do. Whoever drives calls
    /// it, also while a bundle's data moves.
    bool pump();

    /// For the owner of tensors that is about to go: returns once no operation that `concerns`
    /// holds for uses its tensors. An operation that waits for other ranks goes on with copies of
    /// them, in memory of the library's own; one whose data moves is waited for, as is one for
    /// which there is no such memory. Throws what ended the job.
    void release_tensors(const std::function<bool(const Request&)>& concerns);
    /// Does something while no bundle of this engine moves on the host, and returns what that
    /// returns; false at once if one moves.
    bool try_between_bundles(const std::function<bool()>& action);

    /// Takes no more requests and says so to the others, without waiting: whoever drives does the
    /// rest.
    void shut_down(std::string_view reason);
    /// Shuts down, and drives until every rank has. Pending operations are completed or failed.
    /// Throws what ended the job.
    void close(std::string_view reason);
    /// Ends the coordinator thread and lets the streams run empty; nobody drives any more. What is
    /// still pending fails, so that handles which outlive all this are complete. Later calls do
    /// nothing.
    void stop() noexcept;
    /// True if the job ended while the transport may still access memory of this rank. That memory
    /// must never be freed; the engine has already seen to its requests.
    bool left_memory_on_loan() const noexcept { return life_.memory_is_on_loan(); }
    /// Quits without waiting for the others, for a process that is about to end: they get the
    /// reason.
    void quit(std::string_view reason);
    /// After quit(): returns when this rank has done its part in what the log held before its
    /// quitting, and in its sends and receives, or at the deadline; if any of that is then on its
    /// way, the job ends.
    void drain_before_exit(base::Deadline deadline) noexcept;
    /// How often all ranks have joined.
    std::uint64_t joins() const { return queue_.joins(); }
    /// Whether a rank has done so: not all ranks will close their transport.
    bool somebody_quit() const noexcept { return life_.somebody_quit(); }

private:
    class Helping;
    /// An entry of the log that is to be executed, with this rank's requests: by then their names
    /// may be those of others.
    struct ReadyEntry {
        protocol::LogEntry entry;
        Requests requests;
    };

    void on_end(std::span<std::shared_ptr<Pending>> operations,
                std::exception_ptr error) noexcept override {
        queue_.end(operations, std::move(error));
    }
    void on_failure(const std::exception_ptr& error) override;

    // Driving.
    void coordinate();
    void poll_briefly(base::WaitLoop& wait_loop);
    /// Returns once `arrived()`, or false at the deadline. `drives`: takes part in driving
    /// meanwhile.
    bool wait(const std::function<bool()>& arrived, base::Deadline deadline, bool drives);
    bool drive_once() GUOZHUANG_REQUIRES(mutex_);
    /// Drives once: whether that made progress; empty if somebody else is driving.
    std::optional<bool> try_drive_once();
    bool has_work() const noexcept { return queue_.has_pending() || life_.is_shutting_down(); }
    bool helped() const noexcept { return helpers_.load(std::memory_order_acquire) > 0; }
    void wake_driver() noexcept { base::ring_local(context_.doorbell, context_.wait.audience); }

    bool take_submissions() GUOZHUANG_REQUIRES(mutex_);
    void check_stalls() GUOZHUANG_REQUIRES(mutex_);

    // What entries of the log mean.
    void accept(protocol::LogEntry entry) GUOZHUANG_REQUIRES(mutex_);
    void execute(ReadyEntry ready_entry) GUOZHUANG_REQUIRES(mutex_);
    void run(ReadyEntry ready_entry) GUOZHUANG_REQUIRES(mutex_);
    bool contributes_neutrally(const protocol::LogEntry& entry) const;
    void end_join(ReadyEntry ready_entry) GUOZHUANG_REQUIRES(mutex_);
    void end_log(const protocol::LogEntry& entry) GUOZHUANG_REQUIRES(mutex_);
    void finish_log(bool somebody_quit) GUOZHUANG_REQUIRES(mutex_);
    void fail_for_quit(Requests requests) GUOZHUANG_REQUIRES(mutex_);

    // The end of the job.
    /// The job is over for this rank: fails everything, stops all waits, throws the first cause.
    [[noreturn]] void end(const std::exception_ptr& cause);
    void abort_for_quit();
    /// Notes the cause and ends the job for the other ranks too.
    void notify_others(const std::exception_ptr& cause) noexcept;
    void take_last_news() noexcept GUOZHUANG_REQUIRES(mutex_);
    /// Fails everything with what has ended the job, which is `cause` unless something had before;
    /// returns it.
    std::exception_ptr fail_pending(const std::exception_ptr& cause);

    std::shared_ptr<const OwnTensors> replace_tensors(Pending& pending);

    const Context context_;
    LifeCycle life_;
    SubmissionQueue queue_;
    Executor executor_;

    base::Mutex mutex_;  ///< whoever holds it drives
    ControlPlane control_plane_ GUOZHUANG_GUARDED_BY(mutex_);
    StallReporter stalls_;  ///< but for log_warnings(), by whoever drives
    std::deque<ReadyEntry> log_ GUOZHUANG_GUARDED_BY(mutex_);  ///< heard and not yet executed
    /// the log's last entry, if a rank has quit
    std::optional<protocol::LogEntry> quit_entry_ GUOZHUANG_GUARDED_BY(mutex_);

    std::atomic<int> helpers_{0};  ///< callers that are waiting, and so driving
    std::thread coordinator_;
};

}  // namespace guozhuang::engine
