#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <signal.h>
#include <string>
#include <thread>

namespace guozhuang::base {

/// A process as others know it. A number alone may be another process's by now.
struct ProcessId {
    std::int64_t pid = 0;
    std::uint64_t started = 0;    ///< in ticks since the system's start
    std::uint64_t numbering = 0;  ///< the pid namespace: in another one the number means nothing
};

ProcessId this_process();
/// Completes what a process could not find out about itself, for lack of descriptors. It must still
/// be there.
void look_up(ProcessId& process);

/// Whether it runs. One that has ended does not, though nobody may have asked for its status yet;
/// one that cannot be looked at does.
bool is_running(const ProcessId& process);

/// What it does, as /proc says: "running", "sleeping", "stopped" ...; empty if that cannot be seen.
std::string state_of(const ProcessId& process);

/// Whether its number means the same to this process.
bool is_visible(const ProcessId& process);

/// A process that is watched by a file descriptor which becomes readable when it ends. Move-only.
class ProcessFile {
public:
    /// Invalid if the system cannot give one, or if the process has ended: errno says which
    /// (ESRCH).
    explicit ProcessFile(const ProcessId& process) noexcept;
    ProcessFile(ProcessFile&& other) noexcept;
    ProcessFile& operator=(ProcessFile&&) = delete;
    ~ProcessFile();

    int descriptor() const noexcept { return file_; }  ///< -1: invalid

private:
    int file_ = -1;
};

/// How a process that has ended did so, as wait(2) would say; empty where the system no longer
/// knows.
std::optional<int> exit_status(const ProcessId& process, const ProcessFile& file);

/// "killed by signal 9 (Killed)", "exited with code 3".
std::string describe_exit(int status);

std::string host_name();

/// From the first call on, children that this process makes with fork() know that they are such.
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

/// Whether this process is such a child: it has the memory of its parent, the shared one too, but
/// none of its threads, and mutexes as they were. It must neither use nor end what the parent has.
bool is_forked() noexcept;

/// In such a child throws Error(unavailable), which says so.
void refuse_forked();

/// Waits for the end of a thread of the library's, unless this is it: a callback of the user's may
/// call exit().
void join(std::thread& thread) noexcept;

/// Those of standard input, output and error that are closed are opened, on nothing: else the next
/// file, socket or shared memory that is opened has their number, and whatever anybody prints goes
/// there.
void hold_standard_files() noexcept;

/// While it lives, a file that may not grow as far as this thread wants (RLIMIT_FSIZE) is an error,
/// EFBIG, and not the end of the process by SIGXFSZ.
class FileSizeErrors {
public:
    FileSizeErrors() noexcept;
    ~FileSizeErrors();
    FileSizeErrors(const FileSizeErrors&) = delete;
    FileSizeErrors& operator=(const FileSizeErrors&) = delete;

private:
    sigset_t before_{};
};

/// Says these last words after `grace`, in the log, and then ends this process with code 1, unless
/// it has ended by itself meanwhile. Returns at once. For a job that cannot be ended properly: MPI
/// would wait for the dead. Later calls do nothing. `end_job`, if there is one, is called instead
/// of the end, and should end this process among others: it gets a second for that.
void end_process(std::string last_words, std::chrono::milliseconds grace,
                 void (*end_job)() = nullptr) noexcept;

/// From a call to its counterpart end_process() waits, and then once more for its grace; though not
/// longer than until the latest of the limits.
void hold_process(std::chrono::milliseconds limit) noexcept;
void release_process() noexcept;

/// The caller has logged better words: end_process() says none.
void suppress_last_words() noexcept;

/// How long a process whose job is over still lives: time to unwind, then for the other ranks to
/// say their last words too. mpirun ends all that are left as soon as a second one has failed, and
/// a second after the first.
inline constexpr auto time_to_unwind = std::chrono::milliseconds(400);
inline constexpr auto time_for_others = std::chrono::milliseconds(100);

}  // namespace guozhuang::base
