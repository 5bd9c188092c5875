#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "engine/backend.hpp"
#include "engine/control.hpp"
#include "engine/pending.hpp"
#include "engine/point_to_point.hpp"
#include "engine/stall_watch.hpp"
#include "protocol/members.hpp"
#include "protocol/negotiator.hpp"
#include "trace/activity.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::engine {

class StallScene;

/// Where bundles of one kind of memory run: inline, on the thread that drives the engine, or on a
/// communication stream of the device.
struct Executor {
    Backend* backend = nullptr;
    std::shared_ptr<device::Stream> stream;  ///< null: inline
};

/// One process set's coordination on this rank: takes requests, negotiates them with the other
/// members, executes the log.
///
/// Somebody *drives*: receives and sends control messages (pump) and executes entries of the log,
/// one after the other. The engine's lock says who. A caller that waits drives itself; the
/// coordinator thread drives when something is pending and no caller does, and sleeps otherwise.
/// Everybody waits on the rank's doorbell. Public functions may be called from any thread.
class Engine final : public Driver, public std::enable_shared_from_this<Engine> {
public:
    struct Parts {
        Control& control;
        Mail& mail;
        base::Doorbell& doorbell;
        trace::Activity& activity;  ///< lives as long as the doorbell
        base::WaitSettings wait;
        protocol::Negotiator::Settings negotiator;
        StallSettings stalls = {};
        /// keeps the doorbell alive: callers may still wait there when all else is gone
        std::shared_ptr<Job> job;
        /// the rank's
        std::shared_ptr<trace::Timeline> timeline = std::make_shared<trace::Timeline>();
        /// Makes sure that there is an executor for a kind of device which this rank may not have
        /// used, and others have; null: all are there.
        std::function<void(DeviceKind)> use_device = nullptr;
    };

    explicit Engine(const Parts& parts);
    ~Engine() override;

    /// How bundles of a device kind are run; before the first request on that kind.
    void add_executor(DeviceKind kind, Executor executor);
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
    void depart(std::string_view reason);
    /// Departs, and drives until every rank has. Pending operations are completed or failed. Throws
    /// what ended the job.
    void close(std::string_view reason);
    /// Ends the coordinator thread and lets the streams run empty; nobody drives any more. What is
    /// still pending fails, so that handles which outlive all this are complete. Later calls do
    /// nothing.
    void stop() noexcept;
    /// Whether the job ended with memory of this rank still lent to messages. What they may touch
    /// must then live as long as the process: the engine has seen to its requests.
    bool left_memory_on_loan() const noexcept { return memory_on_loan_; }
    /// Departs without waiting for the others, for a process that is about to end: they get the
    /// reason.
    void leave(std::string_view reason);
    /// After leave(): returns when this rank has done its part in what the log held before its
    /// leaving, and in its sends and receives, or at the deadline; if any of that is then on its
    /// way, the job ends.
    void see_off(base::Deadline deadline) noexcept;
    /// How often all ranks have joined.
    std::uint64_t joins() {
        const base::Lock lock(queue_mutex_);
        return joins_;
    }
    /// Whether a rank has done so: not all ranks will close their transport.
    bool somebody_left() const noexcept { return somebody_left_; }

private:
    enum class Channel : std::uint8_t { negotiation, letters };
    class Helping;
    struct OwnTensors;

    void coordinate();
    void attend(base::Patience& patience);
    /// Returns once `arrived()`, or false at the deadline. `drives`: takes part in driving
    /// meanwhile.
    bool wait(const std::function<bool()>& arrived, base::Deadline deadline, bool drives);
    bool turn() GUOZHUANG_REQUIRES(mutex_);
    /// A turn, and whether it made progress; empty if somebody else is driving.
    std::optional<bool> try_turn();
    bool has_pending() const noexcept { return pending_count_.load(std::memory_order_acquire) > 0; }
    bool has_work() const noexcept { return has_pending() || (departing_ && !finished_); }
    bool helped() const noexcept { return helpers_.load(std::memory_order_acquire) > 0; }

    std::shared_ptr<Pending> find_pending(const std::function<bool(const Request&)>& concerns);
    std::shared_ptr<const OwnTensors> replace_tensors(Pending& pending);

    void check_open(const Request& request) const GUOZHUANG_REQUIRES(queue_mutex_);
    void check_not_joined(const Request& request) const GUOZHUANG_REQUIRES(queue_mutex_);
    void number(Request& request, std::uint64_t number) const GUOZHUANG_REQUIRES(queue_mutex_);
    template <class Table, class Entry, class Queue, class Element>
    void enter(Table& table, Entry entry, Queue& queue, Element element)
        GUOZHUANG_REQUIRES(queue_mutex_);
    void enter_closing();
    /// The log is complete.
    void finish_log() GUOZHUANG_REQUIRES(mutex_);
    bool take_submissions() GUOZHUANG_REQUIRES(mutex_);
    void receive(const Control::Message& message) GUOZHUANG_REQUIRES(mutex_);
    void send(int to, Channel channel, protocol::Bytes bytes) GUOZHUANG_REQUIRES(mutex_);
    using Requests = std::vector<std::shared_ptr<Pending>>;
    /// An entry of the log that is to be executed, with this rank's requests: by then their names
    /// may be those of others.
    struct Due {
        protocol::LogEntry entry;
        Requests requests;
    };
    void accept(protocol::LogEntry entry) GUOZHUANG_REQUIRES(mutex_);
    Requests take_open(const protocol::LogEntry& entry) GUOZHUANG_REQUIRES(mutex_);
    void execute(Due due) GUOZHUANG_REQUIRES(mutex_);
    Requests stand_ins_for(const protocol::LogEntry& entry);
    bool stands_in(const protocol::LogEntry& entry) const;
    void end_log(const protocol::LogEntry& leave) GUOZHUANG_REQUIRES(mutex_);
    void end_join(Due due) GUOZHUANG_REQUIRES(mutex_);
    void fail_departed(Requests requests) GUOZHUANG_REQUIRES(mutex_);
    /// On the timeline: these go on to this phase.
    void mark(std::span<const std::shared_ptr<Pending>> requests, std::string_view phase);
    void notice_stalls() GUOZHUANG_REQUIRES(mutex_);
    bool report_stall(const Stalled& stalled, StallScene& scene, std::size_t said)
        GUOZHUANG_REQUIRES(mutex_);
    void say() noexcept;
    Executor executor_of(DeviceKind kind);
    void run(Due due) GUOZHUANG_REQUIRES(mutex_);
    void run_on(Backend& backend, const Bundle& bundle, std::string_view name);
    void attempt(protocol::OperationKind operation, const std::function<void()>& work);
    void run_on_stream(const Executor& executor, Bundle bundle, Requests requests);
    /// The end of these, as the log or a backend has it. complete_ended() makes it known to those
    /// who wait. Takes them: the last owner must not be somebody who holds a lock.
    void finish(std::span<std::shared_ptr<Pending>> requests, std::exception_ptr error) noexcept;
    bool set_ended(Pending& pending, const std::exception_ptr& error) noexcept;
    void note_end(const std::shared_ptr<Pending>& pending,
                  const std::exception_ptr& error) noexcept;
    /// The job is over for this rank: fails everything, stops all waits, throws the first cause.
    [[noreturn]] void end(const std::exception_ptr& cause);
    void end_for_leaving();
    /// Notes the cause and ends the job for the other ranks too.
    void tell_others(const std::exception_ptr& cause) noexcept;
    void take_last_news() noexcept GUOZHUANG_REQUIRES(mutex_);
    /// Fails everything with what has ended the job, which is `cause` unless something had before;
    /// returns it.
    std::exception_ptr fail_pending(const std::exception_ptr& cause);

    const std::shared_ptr<Job> job_;
    const std::shared_ptr<trace::Timeline> timeline_;
    const protocol::Members members_;
    const std::shared_ptr<const std::string> set_;  ///< its name, for the timeline; null: the world
    const int rank_;                                ///< of the world
    base::Doorbell& doorbell_;
    trace::Activity& activity_;
    const base::WaitSettings wait_;
    const std::function<void(DeviceKind)> use_device_;

    base::Mutex mutex_;  ///< whoever holds it drives
    Control& control_ GUOZHUANG_GUARDED_BY(mutex_);
    protocol::Negotiator negotiator_ GUOZHUANG_GUARDED_BY(mutex_);
    PointToPoint point_to_point_ GUOZHUANG_GUARDED_BY(mutex_);
    StallWatch stalls_ GUOZHUANG_GUARDED_BY(mutex_);
    /// By name: what the negotiator has and the log has not resolved, as far as this rank has heard
    /// it.
    std::unordered_map<std::string, std::shared_ptr<Pending>> open_ GUOZHUANG_GUARDED_BY(mutex_);
    std::deque<Due> log_ GUOZHUANG_GUARDED_BY(mutex_);  ///< heard and not yet executed
    /// the log's last entry, if a rank has left
    std::optional<protocol::LogEntry> left_ GUOZHUANG_GUARDED_BY(mutex_);

    base::Mutex queue_mutex_;  ///< held for moments only; may be taken while driving
    std::map<DeviceKind, Executor> executors_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    Requests submitted_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    std::vector<Letter> letters_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    /// From submission to completion: by name, and those of point to point and stand-ins. Whatever
    /// is lost on the way, here it is found.
    std::unordered_map<std::string, std::shared_ptr<Pending>> pending_
        GUOZHUANG_GUARDED_BY(queue_mutex_);
    std::unordered_set<std::shared_ptr<Pending>> pending_nameless_
        GUOZHUANG_GUARDED_BY(queue_mutex_);
    /// how many so far, since all joined
    std::map<protocol::OperationKind, std::uint64_t> unnamed_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    /// and waits for the others to join
    bool joined_ GUOZHUANG_GUARDED_BY(queue_mutex_) = false;
    /// how often all have
    std::uint64_t joins_ GUOZHUANG_GUARDED_BY(queue_mutex_) = 0;
    /// asked for, with its reason
    std::optional<std::string> departure_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    bool closed_ GUOZHUANG_GUARDED_BY(queue_mutex_) = false;
    /// the wait for the others to close
    std::shared_ptr<Pending> closing_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    std::exception_ptr cause_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    /// warnings
    std::vector<std::string> to_say_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    /// to be let go without a lock
    std::unordered_set<std::shared_ptr<Pending>> looked_at_ GUOZHUANG_GUARDED_BY(queue_mutex_);
    std::atomic<bool> has_to_say_{false};
    std::atomic<bool> departing_{false};
    std::atomic<bool> leaving_{false};  ///< the departure does not wait for the others

    EndedQueue ended_;
    std::atomic<int> pending_count_{0};  ///< of those that are not complete
    std::atomic<int> helpers_{0};        ///< callers that are waiting, and so driving
    std::atomic<bool> finished_{false};
    std::atomic<bool> somebody_left_{false};
    std::atomic<bool> stop_{false};
    std::atomic<bool> memory_on_loan_{false};
    std::thread coordinator_;
};

}  // namespace guozhuang::engine
