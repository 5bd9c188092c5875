#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <thread>
#include <utility>

namespace guozhuang::base {

/// A process as other processes know it. The pid alone is not enough: it may be reused.
struct ProcessId {
    std::int64_t pid = 0;
    std::uint64_t started = 0;    ///< in ticks since the system's start
    std::uint64_t numbering = 0;  ///< the pid namespace: in another one the pid means nothing
};

ProcessId this_process();
/// Fills in fields that a process could not find out about itself for lack of file descriptors. The
/// process must still exist.
void look_up(ProcessId& process);

/// Whether the process runs. False once it has ended, even if nobody has waited for it yet. True if
/// it cannot be looked at.
bool is_running(const ProcessId& process);

/// Returns the process's state from /proc: "running", "sleeping", "stopped" ...; empty if unknown.
std::string state_of(const ProcessId& process);

/// Whether the process has the same pid for this process.
bool is_visible(const ProcessId& process);

/// A file descriptor that becomes readable when a process ends (pidfd). Move-only.
class ProcessFile {
public:
    /// Invalid if the system cannot open one, or if the process has ended; then errno is ESRCH.
    explicit ProcessFile(const ProcessId& process) noexcept;
    ProcessFile(ProcessFile&& other) noexcept;
    ProcessFile& operator=(ProcessFile&&) = delete;
    ~ProcessFile();

    int descriptor() const noexcept { return file_; }  ///< -1: invalid

private:
    int file_ = -1;
};

/// The exit status of a process that has ended, as from wait(2); empty if the system no longer
/// knows.
std::optional<int> exit_status(const ProcessId& process, const ProcessFile& file);

/// "killed by signal 9 (Killed)", "exited with code 3".
std::string describe_exit(int status);

std::string host_name();

/// From now on this process survives a write to a closed pipe or socket, which then fails with
/// EPIPE; programs that it starts do not. Changes nothing if the program has its own way with
/// SIGPIPE.
void survive_broken_pipes() noexcept;

/// From the first call on, is_forked() is true in children that this process makes with fork().
void notice_forks();

/// While it lives, every direct child of fork() runs `action` before anything else. Only
/// async-signal-safe functions may be called there: the child has one thread, and mutexes may be
/// locked.
class ForkChildHandler {
public:
    explicit ForkChildHandler(std::function<void()> action);
    ForkChildHandler(const ForkChildHandler&) = delete;
    ForkChildHandler& operator=(const ForkChildHandler&) = delete;
    ~ForkChildHandler();

    void act() const { action_(); }

private:
    const std::function<void()> action_;
};

/// Whether this process is a fork() child of a process that uses the library. It has the parent's
/// memory, including shared memory, but none of its threads, and mutexes as they were. It must
/// neither use nor end anything that belongs to the parent.
bool is_forked() noexcept;

/// Throws Error(unavailable) in such a child.
void refuse_forked();

/// While it lives, this thread and the threads that it starts block signals sent to the process, so
/// the program's own threads get them (sigwait() too). Signals for a thread's own faults stay
/// unblocked, and SIGPROF, which profilers need.
class SignalsBlocked {
public:
    SignalsBlocked() noexcept;
    ~SignalsBlocked();
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

/// Starts a library thread with this name in the system's lists (at most 15 characters). All
/// library threads are started here. Throws std::system_error.
template <class Body>
std::thread start_thread(const char* name, Body&& body) {
    const SignalsBlocked blocked;
    std::thread thread(std::forward<Body>(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
}

/// Joins a thread of the library. Does nothing on that thread itself: a user callback that runs
/// there may call exit().
void join(std::thread& thread) noexcept;

/// Logs `last_words` and ends this process with code 1 after `grace`, unless it has ended by itself
/// before. Returns at once; later calls do nothing. For a job in which MPI would wait for a dead
/// rank. If `end_job` is given, calls that instead; it has a second to end this process.
void end_process(std::string last_words, std::chrono::milliseconds grace,
                 void (*end_job)() = nullptr) noexcept;

/// Takes end_process() back: the process goes on. A later call of that ends it after all.
void keep_process() noexcept;

/// Between the two calls end_process() waits, at most until the latest of the limits. Then it waits
/// for `grace` once more.
void hold_process(std::chrono::milliseconds limit) noexcept;
void release_process() noexcept;

/// Makes end_process() log nothing, because the caller has logged a better reason.
void suppress_last_words() noexcept;

/// How long a process lives on after its job is over: first to unwind, then for the other ranks to
/// log their last words. mpirun ends all processes as soon as a second one has failed, and one
/// second after the first.
inline constexpr auto time_to_unwind = std::chrono::milliseconds(400);
inline constexpr auto time_for_others = std::chrono::milliseconds(100);

}  // namespace guozhuang::base
