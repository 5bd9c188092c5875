#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/process.hpp"
#include "wire/host_link.hpp"

namespace guozhuang::wire {

/// Watches the processes of other ranks, from a thread of its own that never calls MPI.
///
/// A process of this host that ends makes its pidfd readable; one of another host ends its link.
/// Where the system gives no pidfd (an old kernel, a sandbox, no descriptor left) the thread looks
/// at /proc ten times a second, after one warning. A process that is not visible from here (another
/// container) is not watched, with a warning.
class Monitor {
public:
    struct WatchedProcess {
        int rank = 0;
        base::ProcessId id;
        std::string host = {};                ///< empty: this one
        std::shared_ptr<HostLink> link = {};  ///< to another host; null: it is of this one
    };
    /// The end of a watched process.
    struct End {
        const WatchedProcess& process;
        std::optional<int> status = {};  ///< as wait(2) gives it; empty if unknown
    };

    /// `on_end` is called for each process that ends, on the thread, until it says that there is
    /// nothing more to watch for. What it cannot watch, or watch well, it says at this level.
    Monitor(const std::vector<WatchedProcess>& processes, std::function<bool(const End&)> on_end,
            LogLevel level = LogLevel::warning);
    /// Ends the thread. A call of `on_end` that is under way is waited for.
    ~Monitor();
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;

private:
    struct Watch {
        WatchedProcess process;
        std::optional<base::ProcessFile> file;  ///< empty if there is a link
        bool has_ended = false;

        int descriptor() const noexcept {
            return file ? file->descriptor() : process.link->descriptor();
        }
    };

    int add(const WatchedProcess& process);
    void watch();
    void look(Watch& watched, bool is_readable);

    std::vector<Watch> watches_;
    std::vector<pollfd> files_;  ///< that by which it is ended, and theirs
    std::function<bool(const End&)> on_end_;
    bool looks_at_proc_ = false;  ///< some have no file
    bool done_ = false;
    int stop_file_ = -1;  ///< an eventfd
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

/// "rank 2 (host h, pid 1234) died (killed by signal 9 (Killed)) during allreduce 'grad7'"; `doing`
/// may be empty.
std::string describe_death(const Monitor::End& end, const std::string& doing);

}  // namespace guozhuang::wire
