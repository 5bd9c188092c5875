// Between gzrun and the processes that watch its ranks: one TCP connection from each, on which it
// sends messages and receives bytes, the numbers of signals for its rank. When gzrun closes its
// direction, the watching process ends, and with it a rank that still runs.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

namespace gzrun {

/// The first says that the rank is about to start, the second how it ended.
struct Message {
    std::uint64_t token;  ///< of this job
    std::int32_t rank;
    std::int32_t status;  ///< as waitpid() gives it
    std::int32_t error;   ///< an errno, if the rank could not be started
};

/// From SIGTERM to SIGKILL, and from the end of all ranks to SIGTERM for a launcher that goes on.
constexpr std::chrono::seconds signal_interval{5};

/// Signals that gzrun passes on. A watching process ignores them: its launcher sends them to the
/// group of processes, and so to the rank.
sigset_t passed_signals();

struct Process {
    int pid = 0;
    int end = -1;   ///< a descriptor that becomes readable when the process ends
    int error = 0;  ///< an errno, if it could not be started
};

/// Starts a command, with these signals blocked.
Process start(const std::vector<std::string>& command, const sigset_t& blocked);

/// A wait status as a code: 128 + signal for a process that a signal has ended.
int code_of(int status);

/// Runs `command` as the rank whose number the environment variable has, and tells gzrun at
/// `contact`, "TOKEN:PORT:ADDRESS,ADDRESS...", how it ended. Returns its exit code, or ends by the
/// same signal, but not before gzrun permits it: no launcher ends ranks because one has died.
int watch_rank(const std::string& contact, const std::string& rank_variable,
               const std::vector<std::string>& command);

}  // namespace gzrun
