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

/// Watches the processes of other ranks, on its own thread, which never calls MPI.
///
/// When a process of this host ends, its pidfd becomes readable; when one of another host ends, its
/// link ends. If the system gives no pidfd (an old kernel, a sandbox, no descriptor left), the
/// thread logs a warning and looks at /proc ten times a second. It warns of processes that it
/// cannot see (in another container), and does not watch them.
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

    /// Other news, which its thread takes besides until it watches no more: it calls `read` when
    /// the descriptor is readable, and not again for a millisecond if that returns false.
    struct Source {
        int descriptor;  ///< -1: there is none
        std::function<bool()> read;
    };

    /// Calls `on_end` on its thread for each process that ends, until `on_end` returns true; then
    /// it watches no more. `level`: for messages about processes that it cannot watch well.
    Monitor(const std::vector<WatchedProcess>& processes, std::function<bool(const End&)> on_end,
            LogLevel level = LogLevel::warning, Source source = {-1, {}});
    /// Waits for a running call of `on_end`, then ends the thread.
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
    bool read_source();

    std::vector<Watch> watches_;
    std::vector<pollfd> files_;  ///< stop_file_, those of the processes, the source's
    std::function<bool(const End&)> on_end_;
    Source source_;
    bool looks_at_proc_ = false;  ///< some processes have no descriptor
    bool done_ = false;
    int stop_file_ = -1;  ///< an eventfd
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

/// "rank 2 (host h, pid 1234) died (killed by signal 9 (Killed)) during allreduce 'grad7'"; `doing`
/// may be empty.
std::string describe_death(const Monitor::End& end, const std::string& doing);

}  // namespace guozhuang::wire
