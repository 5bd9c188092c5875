#include "engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <utility>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "engine/outputs.hpp"

namespace guozhuang::engine {
namespace {

using Kind = protocol::LogEntry::Kind;

constexpr std::chrono::milliseconds poll_time(20);
constexpr std::chrono::microseconds shortest_nap(20), longest_nap(320);

}  // namespace

/// Counts a caller that waits, and so drives. When it leaves, it wakes another driver if anything
/// is pending or somebody waits.
class Engine::WaitingCaller {
public:
    explicit WaitingCaller(Engine& engine) noexcept : engine_(&engine) {
        engine.waiting_callers_.fetch_add(1);
    }
    ~WaitingCaller() { leave(); }
    WaitingCaller(const WaitingCaller&) = delete;
    WaitingCaller& operator=(const WaitingCaller&) = delete;

    bool has_left() const noexcept { return engine_ == nullptr; }
    void leave() noexcept {
        if (has_left()) return;
        auto& engine = *std::exchange(engine_, nullptr);
        engine.waiting_callers_.fetch_sub(1);
        if (engine.has_caller() || engine.has_work()) engine.context_.ring(base::Sleepers::idle);
    }

private:
    Engine* engine_;  ///< null: it has left
};

Engine::Engine(const Dependencies& dependencies)
    : context_(dependencies.context),
      queue_(context_, life_),
      executor_(context_, dependencies.provider),
      eager_calls_(context_, queue_, dependencies.negotiator.policy),
      control_plane_(dependencies.control, dependencies.mail, dependencies.negotiator),
      stalls_(dependencies.stalls, context_) {}

void Engine::start() {
    coordinator_ = base::start_thread("gz-coordinator", [this] { coordinate(); });
}

std::shared_ptr<Pending> Engine::submit(Request&& request, bool caller_waits) {
    base::refuse_forked();
    if (request.kind == Request::Kind::point_to_point)
        request.staged = executor_.stage(request, shared_from_this());
    return queue_.submit(std::move(request), shared_from_this(), caller_waits);
}

// --- driving -------------------------------------------------------------------------------------

bool Engine::drive_until(const std::function<bool()>& arrived, base::Deadline deadline) {
    const bool may_block = deadline == base::no_deadline || context_.wait.turn_scheduler != nullptr;
    return wait(arrived, deadline, !may_block);
}

bool Engine::wait(const std::function<bool()>& arrived, base::Deadline deadline, bool only_small) {
    if (arrived()) return true;
    base::refuse_forked();
    const trace::TimelineSlice waiting(*context_.timeline, "wait");
    WaitingCaller caller(*this);
    try {
        base::WaitLoop wait_loop(context_.doorbell, context_.wait, deadline);
        bool first_look = true;
        while (!arrived()) {
            auto result = DriveResult::of_another;
            if (caller.has_left())
                complete_ended();
            else
                result = try_drive_once(only_small);
            // Another thread drives. It may be asleep, and not know what this caller has submitted.
            if (result == DriveResult::of_another && std::exchange(first_look, false))
                context_.ring(base::Sleepers::for_news);
            if (arrived()) return true;
            switch (result) {
                case DriveResult::progressed: wait_loop.progressed(); break;
                case DriveResult::in_vain: wait_loop.pause(); break;
                case DriveResult::messages_move:
                    wait_loop.pause(base::longest_sleep_for_messages);
                    break;
                case DriveResult::of_another: wait_loop.pause(base::Sleepers::behind); break;
                case DriveResult::too_large: caller.leave(); break;  // the coordinator wakes up
            }
        }
        return true;
    } catch (const base::DeadlinePassed&) {
        return arrived();
    } catch (...) {
        end(std::current_exception());
    }
}

void Engine::coordinate() {
    try {
        base::WaitLoop wait_loop(context_.doorbell, context_.wait);
        bool drove = false;
        while (!life_.is_stopped()) {
            if (has_caller() || !has_work()) {
                // A caller that found the lock taken may be waiting behind this thread.
                if (has_caller() && std::exchange(drove, false))
                    context_.ring(base::Sleepers::behind);
                wait_loop.pause(base::Sleepers::idle);
                if (has_caller()) {
                    complete_ended();
                } else {
                    nap(wait_loop);
                    drove = true;
                    poll_briefly(wait_loop);
                }
                continue;
            }
            drove = true;
            switch (try_drive_once()) {
                case DriveResult::progressed: wait_loop.progressed(); break;
                case DriveResult::messages_move:
                    wait_loop.pause(base::longest_sleep_for_messages);
                    break;
                default: wait_loop.pause();
            }
        }
    } catch (...) {
        try {
            end(std::current_exception());
        } catch (const std::exception& error) {
            base::log(LogLevel::debug, "the coordinator of rank {} ends: {}", context_.rank,
                      error.what());
        }
    }
}

/// If a submission has not been taken, naps while the number of pending operations changes, so that
/// operations that a caller submits in a row are negotiated together, and the caller keeps its
/// core. Naps add up to 620 us.
void Engine::nap(base::WaitLoop& wait_loop) {
    if (!queue_.has_untaken()) return;
    int before = 0;
    for (auto length = shortest_nap; length <= longest_nap; length *= 2) {
        const int pending = queue_.pending_count();
        if (pending == std::exchange(before, pending)) return;
        wait_loop.nap(length);
    }
}

/// This rank was woken, perhaps for another process set or another thread. If there is a message,
/// keeps polling for a moment: more may follow, or this rank may have to pass something on.
void Engine::poll_briefly(base::WaitLoop& wait_loop) {
    if (try_drive_once() != DriveResult::progressed) return;
    const auto end = base::Clock::now() + poll_time;
    do {
        if (try_drive_once() == DriveResult::progressed)
            wait_loop.progressed();
        else
            wait_loop.pause();
    } while (!life_.is_stopped() && !has_caller() && !has_work() && base::Clock::now() < end);
}

Engine::DriveResult Engine::try_drive_once(bool only_small) {
    auto result = DriveResult::of_another;
    if (mutex_.try_lock()) {
        const base::Lock lock(mutex_, std::adopt_lock);
        result = drive_once(only_small);
    }
    complete_ended();
    return result;
}

/// Takes and sends messages, then executes at most one entry of the log. After a failure no other
/// thread drives.
Engine::DriveResult Engine::drive_once(bool only_small) try {
    if (life_.is_stopped() || base::is_aborted(context_.doorbell)) return DriveResult::in_vain;
    const bool progressed = pump();
    if (log_.empty() || !is_due(log_.front())) {
        if (!progressed && has_work()) eager_calls_.decline();
        if (progressed) return DriveResult::progressed;
        const bool messages_move = control_plane_.point_to_point().is_moving();
        return messages_move ? DriveResult::messages_move : DriveResult::in_vain;
    }
    if (only_small && !moves_little(log_.front(), context_.size)) return DriveResult::too_large;
    auto entry = std::move(log_.front());
    log_.pop_front();
    execute(entry);
    return DriveResult::progressed;
} catch (...) {
    std::rethrow_exception(abort(std::current_exception()));
}

bool Engine::pump() {
    mutex_.is_held();  // also when an algorithm calls it, which waits
    bool progressed = take_submissions();
    progressed |= receive();
    if (!progressed) check_stalls();
    control_plane_.send_messages();
    progressed |= take_entries();
    return progressed;
}

bool Engine::receive() {
    mutex_.is_held();
    const bool has_arrived = control_plane_.receive_messages();
    auto outcomes = control_plane_.take_outcomes();
    for (auto& [pending, error] : outcomes) queue_.end(std::span(&pending, 1), error);
    return has_arrived || !outcomes.empty();
}

bool Engine::take_submissions() {
    queue_.take(taken_);
    if (taken_.empty()) return false;
    Requests too_late;
    for (auto& pending : taken_.operations) {
        const auto& request = pending->request();
        if (quit_entry_ && request.kind == Request::Kind::collective) {
            too_late.push_back(std::move(pending));
            continue;
        }
        stalls_.expect(request.deadline);
        control_plane_.submit(pending, taken_.operations.size() == 1);
    }
    if (!too_late.empty()) fail_for_quit(std::move(too_late));
    if (taken_.shutdown) control_plane_.announce(*taken_.shutdown);
    taken_.operations.clear();  // the engine must not be the last to hold them
    return true;
}

void Engine::check_stalls() {
    if (!stalls_.is_due()) return;
    auto awaited = queue_.all_awaited();
    if (auto call = eager_calls_.under_way(shared_from_this())) awaited.push_back(std::move(call));
    stalls_.look(std::move(awaited), [this](const Pending& pending) {
        mutex_.is_held();
        return control_plane_.progress_of(pending);
    });
}

// --- the log -------------------------------------------------------------------------------------

/// Fails the operations of a fail entry at once: no data moves for them, and the entries before it
/// may take long.
void Engine::accept(protocol::LogEntry&& entry) {
    if (entry.kind == Kind::fail) {
        auto requests = take_requests(entry);
        return queue_.end(requests, error_of(entry, context_.group_ranks));
    }
    if (entry.kind == Kind::execute && context_.timeline->on())
        for (const auto& item : entry.items)
            if (item.submitter) context_.timeline->enter(pending_of(item), "queue");
    log_.push_back(std::move(entry));
}

/// The log may end only once this rank has heard of each shutdown from the rank itself. The entry
/// may arrive earlier, through other ranks, and so before the sends and receives that a rank has
/// announced.
bool Engine::is_due(const protocol::LogEntry& entry) const {
    return entry.kind != Kind::all_shut_down ||
           control_plane_.point_to_point().have_all_shut_down();
}

void Engine::execute(protocol::LogEntry& entry) {
    switch (entry.kind) {
        case Kind::execute: run(entry); break;
        case Kind::fail:
        case Kind::evict: break;
        case Kind::all_shut_down: finish_log(false); break;
        case Kind::join: end_join(entry); break;
        case Kind::quit: end_log(entry); break;
    }
}

void Engine::run(protocol::LogEntry& entry) {
    auto requests = take_requests(entry);
    if (contributes_neutrally(entry, context_)) {
        requests = executor_.identity_inputs(entry, shared_from_this());
        queue_.add_neutral(requests);
    }
    executor_.run(entry, std::move(requests), shared_from_this());
}

void Engine::end_join(protocol::LogEntry& entry) {
    auto requests = take_requests(entry);
    queue_.end_join();
    const auto& group_ranks = context_.group_ranks;
    const auto error = entry.text.empty() ? nullptr : error_of(entry, group_ranks);
    if (!error)
        for (const auto& pending : requests)
            pending->result(0).rows = {group_ranks.world_rank(entry.ranks.front())};
    queue_.end(requests, error);
}

/// Fails the operations that the log has not resolved: each would need the rank that has quit.
void Engine::end_log(const protocol::LogEntry& entry) {
    quit_entry_ = entry;
    queue_.cancel_join();
    const auto quitter = context_.group_ranks.world_rank(entry.ranks.front());
    if (quitter != context_.rank) {
        const int first = entry.culprit >= 0 ? entry.culprit : quitter;
        if (context_.group_ranks.are_the_world())
            base::note_cause(context_.doorbell,
                             {.rank = first, .text = entry.text, .code = ErrorCode::departed});
        fail_for_quit(control_plane_.take_unresolved());
    }
    finish_log(true);
}

// --- owners of memory who go before their operations are complete --------------------------------

void Engine::release_tensors(const OwnsTensors& owner) {
    while (const auto pending = queue_.find(owner)) {
        std::shared_ptr<const OwnTensors> own;
        const auto released = [&] {
            if (!own && !pending->complete()) own = replace_tensors(*pending, owner);
            return own ? own->are_filled() : pending->complete();
        };
        drive_until(std::ref(released), base::no_deadline);  // allocates nothing
        if (has_work())
            context_.ring(base::Sleepers::idle);  // the caller that promised to wait may be gone
    }
}

/// Returns null if another thread drives, if the operation's data is moving, or if there is no
/// memory. The caller then waits for the operation's end.
std::shared_ptr<const OwnTensors> Engine::replace_tensors(Pending& pending,
                                                          const OwnsTensors& owner) try {
    std::shared_ptr<const OwnTensors> own;
    try_between_bundles([&] {
        mutex_.is_held();
        if (base::is_aborted(context_.doorbell) || pending.has_ended() || pending.enqueued() ||
            control_plane_.point_to_point().is_moving(pending))
            return false;
        own = queue_.copy_tensors(pending, owner);
        return true;
    });
    return own;
} catch (const std::exception&) {
    return nullptr;
}

// --- the end -------------------------------------------------------------------------------------

void Engine::close(std::string_view reason, int culprit) {
    shut_down(reason, culprit);
    queue_.add_closing(shared_from_this());
    drive_until([this] { return life_.is_over() && !queue_.has_pending(); }, base::no_deadline);
    const auto flushed = [this] {
        if (!mutex_.try_lock()) return false;
        const base::Lock lock(mutex_, std::adopt_lock);
        return control_plane_.flushed();
    };
    if (!life_.somebody_quit()) {
        drive_until(flushed, base::no_deadline);
    } else {  // The rank that has quit takes no messages. The others may wait to hear of this rank.
        const base::Lock driving(mutex_);
        if (!life_.is_stopped()) take_last_news([this] { pump(); });
    }
    life_.rethrow_cause();
}

void Engine::stop() noexcept {
    if (!life_.stop()) return;
    if (queue_.has_pending()) base::abort(context_.doorbell);
    context_.ring(base::Sleepers::idle);
    base::join(coordinator_);
    // A caller that drives ends its turn here; at the next it sees that this has stopped.
    { const base::Lock last_turn(mutex_); }
    complete_ended();
    if (queue_.has_pending())
        fail_pending(std::make_exception_ptr(
            Error(ErrorCode::aborted, "this session ended while the operation was pending")));
    executor_.clear(life_.memory_is_on_loan());
    complete_ended();
    queue_.stop_releases();
}

/// Waits until this rank's `quit` entry comes back in the log: everything before it has then run,
/// or is on a stream, for which it waits too. If this takes longer than the deadline, it aborts the
/// job, because others may be blocked in an operation that needs this rank, or may hear the log
/// through it. It waits for pending sends and receives until the deadline, because the peer may
/// already have matched them.
void Engine::drain_before_exit(base::Deadline deadline) noexcept {
    try {
        bool will_be_heard = false, is_heard = false, is_moving = false;
        const auto is_drained = [&] {
            if (!mutex_.try_lock()) return false;
            const base::Lock lock(mutex_, std::adopt_lock);
            const bool sent = life_.has_announced() && control_plane_.flushed();
            will_be_heard = sent && !control_plane_.passes_log_on();
            is_heard = is_heard || (sent && life_.is_over());
            const auto& point_to_point = control_plane_.point_to_point();
            is_moving = point_to_point.is_moving() || !executor_.is_idle();
            return is_heard && executor_.is_idle() && !point_to_point.has_operations();
        };
        if (wait(is_drained, deadline)) return;
        if (is_heard ? is_moving : !will_be_heard || queue_.has_pending()) abort_for_quit();
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "rank {} could not announce that it quits: {}", context_.rank,
                  error.what());
    }
}

void Engine::on_failure(const std::exception_ptr& error) {
    if (life_.is_stopped() || life_.quits()) abort_for_quit();
    notify_others(error);
}

/// The text is that of the `quit` entry, which has not reached all ranks.
void Engine::abort_for_quit() {
    const auto [text, culprit] = life_.describe_shutdown(context_.rank);
    context_.job->abort({.rank = culprit, .text = text, .code = ErrorCode::departed});
}

std::exception_ptr Engine::abort(const std::exception_ptr& cause) {
    auto error = as_error(cause, {}, context_.rank);
    notify_others(error);
    base::abort(context_.doorbell);
    return error;
}

/// Notes the cause first, since this rank's own waits will fail too. If the doorbell's abort word
/// is set already, the other ranks know.
void Engine::notify_others(const std::exception_ptr& cause) noexcept {
    life_.note_cause(cause);
    if (base::is_aborted(context_.doorbell)) return;
    context_.job->abort({.rank = context_.rank, .text = base::describe(cause)});
}

/// Accepts entries that have arrived before everything fails, so that this rank, though it looks
/// late, gets an error that the log has decided.
void Engine::take_last_news(const std::function<void()>& take) noexcept try {
    try {
        take();
    } catch (const std::exception& error) {
        base::log_debug(error.what());
    }
    take_entries();
} catch (const std::exception& error) {
    base::log_debug(error.what());
}

std::exception_ptr Engine::fail_pending(const std::exception_ptr& cause) {
    std::pair<std::exception_ptr, SubmissionQueue::Tables> failed;  // destroyed without a lock
    {
        const base::Lock driving(mutex_);
        if (!life_.is_stopped()) take_last_news([this] { receive(); });
        control_plane_.abandon();
        if (!context_.job->abandon()) life_.lend_memory();
        failed = queue_.fail(cause);
        taken_ = {};
        entries_.clear();
        log_.clear();
    }
    executor_.release();
    complete_ended();
    return failed.first;
}

}  // namespace guozhuang::engine
