#include "wire/monitor.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "base/log.hpp"
#include "base/wait.hpp"

namespace guozhuang::wire {
namespace {

constexpr auto time_between_looks = std::chrono::milliseconds(100);

}  // namespace

Monitor::Monitor(const std::vector<Peer>& peers, std::function<bool(const End&)> on_end) : on_end_(std::move(on_end)) {
    if (peers.empty()) return;
    for (const Peer& peer : peers) add(peer);
    stop_file_ = eventfd(0, EFD_CLOEXEC);
    try {
        thread_ = std::thread([this] { watch(); });
        pthread_setname_np(thread_.native_handle(), "gz-monitor");
    } catch (const std::system_error& error) {
        base::log_warning(fmt::format("no thread to watch the other ranks ({}): their death would go unnoticed", error.what()));
    }
}

void Monitor::add(const Peer& peer) {
    if (!base::is_visible(peer.process)) {
        base::log_warning(
            fmt::format("the process of rank {} is not visible from here (another container?): its death would go unnoticed", peer.rank));
        return;
    }
    base::ProcessFile file(peer.process);
    const bool slow = file.descriptor() < 0 && errno != ESRCH;  // else it is dead, which the first look finds
    if (slow && !looks_at_proc_)
        base::log_warning(fmt::format("pidfd_open: {}: the death of a rank is noticed a little later", std::strerror(errno)));
    looks_at_proc_ |= slow;
    watched_.push_back({peer, std::move(file)});
}

Monitor::~Monitor() {
    stop_.store(true);
    if (stop_file_ >= 0) eventfd_write(stop_file_, 1);
    if (thread_.joinable()) thread_.join();
    if (stop_file_ >= 0) ::close(stop_file_);
}

void Monitor::watch() {
    std::vector<pollfd> files{{stop_file_, POLLIN, 0}};
    for (const Watched& each : watched_) files.push_back({each.file.descriptor(), POLLIN, 0});  // poll passes over those below 0
    const bool slow = looks_at_proc_ || stop_file_ < 0;
    for (std::optional<std::chrono::milliseconds> limit{0}; !stop_ && !done_; limit.reset()) {
        base::wait_for_files(files, slow && !limit ? time_between_looks : limit);
        for (std::size_t i = 0; i < watched_.size() && !stop_ && !done_; ++i) {
            look(watched_[i], files[i + 1].revents != 0);
            if (watched_[i].has_ended) files[i + 1].fd = -1;
        }
    }
}

void Monitor::look(Watched& watched, bool is_readable) {
    if (watched.has_ended) return;
    watched.has_ended = is_readable || (watched.file.descriptor() < 0 && !base::is_running(watched.peer.process));
    if (watched.has_ended) done_ = on_end_({watched.peer, base::exit_status(watched.peer.process, watched.file)});
}

std::string obituary(const Monitor::End& end, const std::string& doing) {
    return fmt::format("rank {} (host {}, pid {}) died{}{}{}", end.peer.rank, base::host_name(), end.peer.process.pid,
                       end.status ? fmt::format(" ({})", base::describe_exit(*end.status)) : "", doing.empty() ? "" : " ", doing);
}

}  // namespace guozhuang::wire
