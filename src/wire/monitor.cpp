#include "wire/monitor.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/wait.hpp"

namespace guozhuang::wire {
namespace {

constexpr auto time_between_looks = std::chrono::milliseconds(100);
constexpr auto time_to_rest = std::chrono::milliseconds(1);

}  // namespace

Monitor::Monitor(const std::vector<WatchedProcess>& processes,
                 std::function<bool(const End&)> on_end, LogLevel level, Source source)
    : on_end_(std::move(on_end)), source_(std::move(source)) {
    if (processes.empty() && source_.descriptor < 0) return;
    std::vector<int> unseen;
    std::string slow;
    for (const WatchedProcess& process : processes) {
        if (!process.link && !base::is_visible(process.id))
            unseen.push_back(process.rank);
        else if (const int error = add(process); error != 0)
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
    // poll() ignores descriptors below 0.
    for (const Watch& each : watches_) files_.push_back({each.descriptor(), POLLIN, 0});
    files_.push_back({source_.descriptor, POLLIN, 0});
    try {
        thread_ = base::start_thread("gz-monitor", [this] { watch(); });
    } catch (const std::system_error& error) {
        base::log(level, "no thread to watch the other ranks ({}): their death would go unnoticed",
                  error.what());
    }
}

/// Returns an errno if the process can only be polled, otherwise 0.
int Monitor::add(const WatchedProcess& process) {
    std::optional<base::ProcessFile> file;
    if (!process.link) file.emplace(process.id);
    // ESRCH: the process has ended, which the first look finds.
    const int error = file && file->descriptor() < 0 && errno != ESRCH ? errno : 0;
    looks_at_proc_ |= error != 0;
    watches_.push_back({process, std::move(file)});
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
    for (std::optional<std::chrono::milliseconds> limit{0}; !stop_ && !done_;) {
        base::wait_for_files(files_, limit);
        limit = slow ? std::optional(time_between_looks) : std::nullopt;
        for (std::size_t i = 0; i < watches_.size() && !stop_ && !done_; ++i) {
            look(watches_[i], files_[i + 1].revents != 0);
            if (watches_[i].has_ended) files_[i + 1].fd = -1;
        }
        if (!read_source()) limit = time_to_rest;
    }
}

/// Returns false if the source is to rest.
bool Monitor::read_source() {
    auto& file = files_.back();
    const bool has_come = file.fd >= 0 && file.revents != 0;
    file.fd = has_come && !source_.read() ? -1 : source_.descriptor;
    return file.fd == source_.descriptor;
}

void Monitor::look(Watch& watched, bool is_readable) {
    if (watched.has_ended) return;
    auto& [process, file, has_ended] = watched;
    if (process.link)
        has_ended = is_readable && process.link->has_ended();
    else
        has_ended = is_readable || (file->descriptor() < 0 && !base::is_running(process.id));
    if (!has_ended || (process.link && process.link->was_closed())) return;
    done_ = on_end_({process, file ? base::exit_status(process.id, *file) : std::nullopt});
}

std::string describe_death(const Monitor::End& end, const std::string& doing) {
    const auto& process = end.process;
    const auto how =
        end.status ? fmt::format(" ({})", base::describe_exit(*end.status))
        : process.link && process.link->error() != 0
            ? fmt::format(" or cannot be reached ({})", std::strerror(process.link->error()))
            : "";
    return fmt::format("rank {} (host {}, pid {}) died{}{}{}", process.rank,
                       process.host.empty() ? base::host_name() : process.host, process.id.pid, how,
                       doing.empty() ? "" : " ", doing);
}

}  // namespace guozhuang::wire
