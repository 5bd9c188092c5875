#include "wire/monitor.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/wait.hpp"

namespace guozhuang::wire {
namespace {

constexpr auto time_between_looks = std::chrono::milliseconds(100);

}  // namespace

Monitor::Monitor(const std::vector<Peer>& peers, std::function<bool(const End&)> on_end,
                 LogLevel level)
    : on_end_(std::move(on_end)) {
    if (peers.empty()) return;
    std::vector<int> unseen;
    std::string slow;
    for (const Peer& peer : peers) {
        if (!peer.link && !base::is_visible(peer.process))
            unseen.push_back(peer.rank);
        else if (const int error = add(peer); error != 0)
            slow = std::strerror(error);
    }
    if (!unseen.empty())
        base::log(level,
                  "of {} the process cannot be seen from here (another container, or no "
                  "descriptors left there?): its death "
                  "would go unnoticed",
                  base::list_ranks(unseen));
    if (looks_at_proc_)
        base::log(level, "pidfd_open: {}: the death of a rank is noticed a little later", slow);
    stop_file_ = eventfd(0, EFD_CLOEXEC);
    files_.push_back({stop_file_, POLLIN, 0});
    // poll() passes over descriptors below 0.
    for (const Watched& each : watched_) files_.push_back({each.descriptor(), POLLIN, 0});
    try {
        thread_ = std::thread([this] { watch(); });
        pthread_setname_np(thread_.native_handle(), "gz-monitor");
    } catch (const std::system_error& error) {
        base::log(level, "no thread to watch the other ranks ({}): their death would go unnoticed",
                  error.what());
    }
}

/// Returns why it can be looked at from time to time only, or 0.
int Monitor::add(const Peer& peer) {
    std::optional<base::ProcessFile> file;
    if (!peer.link) file.emplace(peer.process);
    // ESRCH: the process is dead, which the first look finds.
    const int error = file && file->descriptor() < 0 && errno != ESRCH ? errno : 0;
    looks_at_proc_ |= error != 0;
    watched_.push_back({peer, std::move(file)});
    return error;
}

Monitor::~Monitor() {
    stop_.store(true);
    if (stop_file_ >= 0) eventfd_write(stop_file_, 1);
    if (thread_.joinable()) thread_.join();
    if (stop_file_ >= 0) ::close(stop_file_);
}

void Monitor::watch() {
    const bool slow = looks_at_proc_ || stop_file_ < 0;
    for (std::optional<std::chrono::milliseconds> limit{0}; !stop_ && !done_; limit.reset()) {
        base::wait_for_files(files_, slow && !limit ? time_between_looks : limit);
        for (std::size_t i = 0; i < watched_.size() && !stop_ && !done_; ++i) {
            look(watched_[i], files_[i + 1].revents != 0);
            if (watched_[i].has_ended) files_[i + 1].fd = -1;
        }
    }
}

void Monitor::look(Watched& watched, bool is_readable) {
    if (watched.has_ended) return;
    auto& [peer, file, has_ended] = watched;
    if (peer.link)
        has_ended = is_readable && peer.link->has_ended();
    else
        has_ended = is_readable || (file->descriptor() < 0 && !base::is_running(peer.process));
    if (!has_ended || (peer.link && peer.link->was_closed())) return;
    done_ = on_end_({peer, file ? base::exit_status(peer.process, *file) : std::nullopt});
}

std::string obituary(const Monitor::End& end, const std::string& doing) {
    const auto& peer = end.peer;
    const auto how =
        end.status ? fmt::format(" ({})", base::describe_exit(*end.status))
        : peer.link && peer.link->error() != 0
            ? fmt::format(" or cannot be reached ({})", std::strerror(peer.link->error()))
            : "";
    return fmt::format("rank {} (host {}, pid {}) died{}{}{}", peer.rank,
                       peer.host.empty() ? base::host_name() : peer.host, peer.process.pid, how,
                       doing.empty() ? "" : " ", doing);
}

}  // namespace guozhuang::wire
