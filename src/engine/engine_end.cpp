// How an engine ends: all together, one rank alone, or because the job cannot go on.
#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <utility>

#include "base/error_text.hpp"
#include "base/keep_for_ever.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "engine/engine.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {

void Engine::stop() noexcept {
    if (stop_.exchange(true)) return;
    if (has_pending()) base::abort(doorbell_);
    base::ring_local(doorbell_, wait_.audience);
    base::join(coordinator_);
    // a caller's: the next one sees stop_, and leaves alone what goes with the session
    { const base::Lock last_turn(mutex_); }
    // dropped by this thread: that of a stream cannot wait for itself
    std::map<DeviceKind, Executor> executors;
    {
        const base::Lock lock(queue_mutex_);
        executors.swap(executors_);
    }
    executors.clear();
    complete_ended();
    if (has_pending())
        fail_pending(std::make_exception_ptr(
            Error(ErrorCode::aborted, "this session ended while the operation was pending")));
}

void Engine::end(const std::exception_ptr& cause) {
    const auto error = as_error(cause, {}, rank_);
    tell_others(error);
    base::abort(doorbell_);
    std::rethrow_exception(fail_pending(error));
}

/// Whoever has set the abort word of the doorbell has told those who are to know. The cause is
/// noted first, since this rank's own waits will fail too.
void Engine::tell_others(const std::exception_ptr& cause) noexcept {
    {
        const base::Lock lock(queue_mutex_);
        if (!cause_) cause_ = cause;
    }
    if (base::is_aborted(doorbell_)) return;
    job_->abort({.rank = rank_, .text = base::describe(cause)});
}

/// What the log has already decided comes before the end of the job: an error that all ranks get is
/// not lost on those who are slow to look.
void Engine::take_last_news() noexcept try {
    try {
        pump();
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "the last messages to rank {} are lost: {}", rank_,
                  error.what());
    }
    for (auto& entry : negotiator_.take_entries()) accept(std::move(entry));
} catch (const std::exception& error) {
    base::log_debug(error.what());
}

std::exception_ptr Engine::fail_pending(const std::exception_ptr& cause) {
    std::exception_ptr first;
    decltype(pending_) named;  // let go without a lock
    decltype(pending_nameless_) nameless;
    {
        const base::Lock driving(mutex_);
        if (!stop_) take_last_news();
        point_to_point_.abandon();
        if (!job_->abandon()) memory_on_loan_ = true;
        const base::Lock lock(queue_mutex_);
        if (!cause_) cause_ = cause;
        first = cause_;
        submitted_.clear();
        letters_.clear();
        open_.clear();  // all are in the tables, too
        log_.clear();
        named.swap(pending_);
        nameless.swap(pending_nameless_);
        for (const auto& [name, pending] : named) note_end(pending, first);
        for (const auto& pending : nameless) note_end(pending, first);
        // with all that they keep alive
        if (memory_on_loan_) base::keep_for_ever(std::pair(std::move(named), std::move(nameless)));
        closing_ = nullptr;
        finished_ = true;
    }
    complete_ended();
    return first;
}

void Engine::depart(std::string_view reason) {
    {
        const base::Lock lock(queue_mutex_);
        if (!departure_) departure_ = std::string(reason);
    }
    departing_ = true;
    base::ring_local(doorbell_, wait_.audience);
}

void Engine::close(std::string_view reason) {
    depart(reason);
    enter_closing();
    drive_until([this] { return finished_ && !has_work(); }, base::no_deadline);
    const auto flushed = [this] {
        if (!mutex_.try_lock()) return false;
        const base::Lock lock(mutex_, std::adopt_lock);
        return control_.flushed();
    };
    if (!somebody_left_) drive_until(flushed, base::no_deadline);  // who has left hears nothing
    const base::Lock lock(queue_mutex_);
    if (cause_) std::rethrow_exception(cause_);
}

/// Others may keep this rank waiting, as they may with an operation.
void Engine::enter_closing() {
    auto closing =
        std::make_shared<Pending>(Request{.kind = Request::Kind::closing}, shared_from_this());
    const base::Lock lock(queue_mutex_);
    if (finished_ || closing_) return;
    pending_nameless_.insert(closing);
    pending_count_.fetch_add(1);
    closing_ = std::move(closing);
}

void Engine::finish_log() {
    finished_ = true;
    std::shared_ptr<Pending> closing;
    {
        const base::Lock lock(queue_mutex_);
        closing.swap(closing_);
    }
    if (closing) finish(std::span(&closing, 1), nullptr);
}

void Engine::leave(std::string_view reason) {
    leaving_ = true;
    depart(reason);
}

/// The same words as in the log, which has not got to all.
void Engine::end_for_leaving() {
    const base::Lock lock(queue_mutex_);
    const auto text = fmt::format("rank {} has shut down{}", rank_,
                                  departure_ ? fmt::format(" ({})", *departure_) : "");
    job_->abort({.rank = rank_, .text = text, .code = ErrorCode::departed});
}

/// The log's own word of the leaving says that whatever came before it has been executed. If it
/// does not come (the others are busy), an operation that they have begun may be waiting for this
/// rank, or ranks that hear the log from this one would hear no more. Letters hold this rank to the
/// deadline, since their peers may have matched them already, and wait for nothing but its half.
void Engine::see_off(base::Deadline deadline) noexcept {
    try {
        bool will_be_heard = false, is_heard = false, is_moving = false;
        const auto seen_off = [&] {
            if (!mutex_.try_lock()) return false;
            const base::Lock lock(mutex_, std::adopt_lock);
            const base::Lock queue(queue_mutex_);
            const bool sent = closed_ && control_.flushed();
            will_be_heard = sent && !negotiator_.passes_log_on();
            is_heard = is_heard || (sent && finished_);
            is_moving = point_to_point_.is_moving();
            return is_heard && !point_to_point_.has_letters();
        };
        if (wait(seen_off, deadline, true)) return;
        if (is_heard ? is_moving : !will_be_heard || has_pending()) end_for_leaving();
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "rank {} could not announce its departure: {}", rank_,
                  error.what());
    }
}

}  // namespace guozhuang::engine
