#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/process.hpp"
#include "base/wait.hpp"

namespace guozhuang::wire {

/// Job and rank of a process, from the variables that its launcher has set.
struct LaunchedRank {
    /// Variables that processes of other jobs do not have: "PMIX_NAMESPACE=1234".
    std::vector<std::string> job;
    int rank = 0;
    int size = 1;        ///< ranks of the job
    int local_size = 0;  ///< of this host; 0: unknown
};
/// Reads the variables with `variable`. Empty if they do not identify a job of several ranks.
std::optional<LaunchedRank> find_launched_rank(
    const std::map<std::string, std::string, std::less<>>& variables);
/// The same for this process's environment.
std::optional<LaunchedRank> find_launched_rank();

/// Throws Error(unavailable) if an ancestor of this process has a session as the rank that this
/// process's environment names: a worker or helper of a rank inherits the launcher's variables, and
/// MPI would end it with a message of its own.
void refuse_child_of_rank();

/// Reports which ranks keep a session from starting. The others wait for them silently inside MPI;
/// nothing here needs MPI.
///
/// While it lives it has a thread; the thread's name in /proc shows other ranks of this host that
/// this rank has started its session. After `warn`, and again each time the wait has doubled, the
/// thread looks for the job's other processes; the lowest waiting rank of a host logs which are
/// missing. After `limit`, or as soon as a rank that had processes on this host has none left, it
/// ends this process with the same text. A rank that has had none yet may be slow.
class StartWatch {
public:
    struct Limits {
        std::chrono::milliseconds warn{0};   ///< 0: never
        std::chrono::milliseconds limit{0};  ///< 0: none
    };

    /// `end_job`: see base::end_process. Without a thread it watches nothing.
    StartWatch(std::optional<LaunchedRank> self, const Limits& limits, void (*end_job)()) noexcept;
    /// Ends the thread.
    ~StartWatch();
    StartWatch(const StartWatch&) = delete;
    StartWatch& operator=(const StartWatch&) = delete;

private:
    void watch();
    std::vector<int> ended_ranks();
    bool wait_until(base::Deadline time);

    const std::optional<LaunchedRank> self_;
    const Limits limits_;
    void (*const end_job_)();
    /// The processes of each rank that have been seen, and have not ended since.
    std::map<int, std::vector<base::ProcessId>> seen_;
    base::Doorbell bell_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace guozhuang::wire
