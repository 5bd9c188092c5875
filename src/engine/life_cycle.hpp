#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.hpp"
#include "protocol/group_ranks.hpp"

namespace guozhuang::engine {

struct Request;

/// The life of a process set on this rank: one state, which only goes forward, and one cause if an
/// error ended it. Thread-safe.
class LifeCycle {
public:
    enum class State : std::uint8_t {
        open,           ///< takes operations
        shutting_down,  ///< takes no more operations
        over,           ///< the log is complete or the job has failed: nothing more is executed
        stopped         ///< nobody drives any more
    };
    /// This rank's announcement that it submits nothing more.
    struct Shutdown {
        std::string reason;
        bool at_once = false;  ///< it quits: it does not wait for the others
        int culprit = -1;      ///< the world rank that is the cause; -1: this rank
    };

    State state() const noexcept { return state_; }
    bool is_stopped() const noexcept { return state() == State::stopped; }
    bool is_over() const noexcept { return state() >= State::over; }
    /// Whether a thread must drive although nothing is pending.
    bool is_shutting_down() const noexcept { return state() == State::shutting_down; }

    /// Throws what ended the job, or Error(not_initialised) once this rank has shut down.
    void require_open(const Request& request, const protocol::GroupRanks& group_ranks) const;

    /// Shuts down. Keeps the reason and culprit of the first call only; `at_once` counts in any
    /// call.
    void shut_down(const Shutdown& shutdown);
    /// Returns the shutdown once; the caller announces it to the other ranks.
    std::optional<Shutdown> take_shutdown();
    bool has_announced() const noexcept;
    bool quits() const noexcept;
    /// "rank 2 has shut down (why)", and the rank that caused it, for the others.
    std::pair<std::string, int> describe_shutdown(int rank) const;

    /// Remembers the first error of an operation that failed because another rank shut down: if
    /// this rank then leaves, that error is the cause.
    void note_failure(const std::exception_ptr& error) noexcept;
    /// Null if there is none.
    std::exception_ptr failure_by_shutdown() const noexcept;

    /// The log is complete. `somebody_quit`: it ended because a rank has quit.
    void end_log(bool somebody_quit);
    bool somebody_quit() const noexcept;

    /// Both keep the first cause and return it. fail() also ends the life cycle.
    std::exception_ptr note_cause(const std::exception_ptr& cause) noexcept;
    std::exception_ptr fail(const std::exception_ptr& cause) noexcept;
    void replace_cause(const std::exception_ptr& cause) noexcept;
    void rethrow_cause() const;  ///< if there is one
    /// Says that messages that cannot be stopped may still use memory of this rank.
    void lend_memory() noexcept { memory_on_loan_ = true; }
    bool memory_is_on_loan() const noexcept { return memory_on_loan_; }

    /// False if it was stopped before.
    bool stop() noexcept { return state_.exchange(State::stopped) != State::stopped; }

private:
    void advance_to(State state) noexcept;

    std::atomic<State> state_{State::open};
    /// Not a state, since it is set before the job fails. Read without the lock when an operation
    /// completes.
    std::atomic<bool> memory_on_loan_{false};
    /// Neither shut down nor with a cause. Not a state, since a cause is noted before the job
    /// fails.
    std::atomic<bool> is_open_{true};
    mutable base::Mutex mutex_;
    std::optional<Shutdown> shutdown_ GUOZHUANG_GUARDED_BY(mutex_);
    /// Whether take_shutdown() has returned the shutdown. Not a state, since that may happen after
    /// the end of the log.
    bool announced_ GUOZHUANG_GUARDED_BY(mutex_) = false;
    bool somebody_quit_ GUOZHUANG_GUARDED_BY(mutex_) = false;  ///< how the log ended
    std::exception_ptr cause_ GUOZHUANG_GUARDED_BY(mutex_);
    std::exception_ptr failure_by_shutdown_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::engine
