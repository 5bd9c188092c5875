#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/wait.hpp"

namespace guozhuang::wire {

/// What a launcher has told this process of its job.
struct LaunchedRank {
    /// Variables that processes of other jobs do not have: "PMIX_NAMESPACE=1234".
    std::vector<std::string> job;
    int rank = 0;
    int size = 1;        ///< ranks of the job
    int local_size = 0;  ///< of this host; 0: unknown
};
/// From variables, as `variable` gives them; empty if they do not tell a job of several ranks from
/// others.
std::optional<LaunchedRank> find_launched_rank(
    const std::map<std::string, std::string, std::less<>>& variables);
/// The same of this process.
std::optional<LaunchedRank> find_launched_rank();

/// Says who keeps a session from beginning: ranks that do not come wait for nothing, and all others
/// wait for them inside MPI, in silence.
///
/// While one lives, a thread of it shows the job's other processes on this host that this rank has
/// come: they see the thread's name in /proc. There it looks for the others, too, after `warn`, and
/// then whenever it has waited twice as long; the lowest of the ranks that wait on a host says what
/// it finds. After `limit` it ends this process, with the same words. Nothing of this needs MPI,
/// which may not even be initialised.
class StartWatch {
public:
    struct Limits {
        std::chrono::milliseconds warn{0};   ///< 0: never
        std::chrono::milliseconds limit{0};  ///< 0: none
    };

    /// `end_job`: see base::end_process. Without a thread to be had there is no watch.
    StartWatch(std::optional<LaunchedRank> self, const Limits& limits, void (*end_job)()) noexcept;
    /// Ends the thread.
    ~StartWatch();
    StartWatch(const StartWatch&) = delete;
    StartWatch& operator=(const StartWatch&) = delete;

private:
    void watch();
    bool wait_until(base::Deadline time);

    const std::optional<LaunchedRank> self_;
    const Limits limits_;
    void (*const end_job_)();
    base::Doorbell bell_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace guozhuang::wire
