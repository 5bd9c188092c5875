#include "base/process.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <limits.h>
#include <pthread.h>
#include <sstream>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/log.hpp"
#include "base/wait.hpp"

namespace guozhuang::base {
namespace {

/// What we read of /proc/PID/stat (proc_pid_stat(5)).
struct Facts {
    char state = '?';
    int threads = 0;
    std::uint64_t started = 0;
    int exit_code = 0;

    /// A leader may end before its threads: the process then still runs.
    bool has_ended() const noexcept { return state == 'X' || (state == 'Z' && threads <= 1); }
};

/// Empty, with errno, if it cannot be read: ENOENT or ESRCH if there is no such process.
std::optional<Facts> read_facts(std::int64_t pid) {
    const int file = open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return std::nullopt;
    std::string line(1024, '\0');
    const auto length = read(file, line.data(), line.size());
    const int error = errno;
    ::close(file);
    errno = error;
    if (length <= 0) return std::nullopt;
    line.resize(static_cast<std::size_t>(length));
    const auto behind_name = line.rfind(')');  // which may itself contain anything
    if (behind_name == std::string::npos) return std::nullopt;
    std::istringstream fields(line.substr(behind_name + 1));
    Facts facts;
    std::string field;
    for (int number = 3; fields >> field; ++number) {
        if (number == 3) facts.state = field.front();
        if (number == 20) facts.threads = std::atoi(field.c_str());
        if (number == 22) facts.started = std::strtoull(field.c_str(), nullptr, 10);
        if (number == 52) facts.exit_code = std::atoi(field.c_str());
    }
    return facts;
}

std::uint64_t own_numbering() {
    struct stat facts {};
    return stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

/// Since Linux 6.15 a pidfd tells how its process has ended even if the parent has asked before. Older headers do not know it.
std::optional<int> status_from_file(int file) {
    struct Information {
        std::uint64_t mask = 1u << 3;  // PIDFD_INFO_EXIT
        std::uint64_t group = 0;
        std::array<std::uint32_t, 11> ids{};
        std::int32_t exit_code = 0;
    } information;
    static_assert(sizeof information == 64);
    const auto request = _IOWR(0xFF, 11, Information);  // PIDFD_GET_INFO
    if (file < 0 || ioctl(file, request, &information) != 0 || (information.mask & (1u << 3)) == 0) return std::nullopt;
    return information.exit_code;
}

std::atomic<bool> words_are_said{false};

// Of a process, like fork() itself.
std::atomic<bool> forked{false};
std::atomic<pid_t> original{0};

void flush(std::FILE* stream) noexcept {
    if (ftrylockfile(stream) != 0) return;  // whoever holds it may never let go
    std::fflush(stream);
    funlockfile(stream);
}

}  // namespace

ProcessId this_process() {
    const auto facts = read_facts(getpid());
    return {getpid(), facts ? facts->started : 0, own_numbering()};
}

bool is_running(const ProcessId& process) {
    const auto facts = read_facts(process.pid);
    if (!facts) return errno != ENOENT && errno != ESRCH;
    return facts->started == process.started && !facts->has_ended();
}

std::string state_of(const ProcessId& process) {
    const auto facts = read_facts(process.pid);
    if (!facts || facts->started != process.started) return {};
    switch (facts->state) {
        case 'R': return "running";
        case 'S':
        case 'I': return "sleeping";
        case 'D': return "waiting for a device";
        case 'T': return "stopped";
        case 't': return "stopped by a debugger";
        default: return "ending";
    }
}

bool is_visible(const ProcessId& process) {
    return process.started != 0 && process.numbering == own_numbering();
}

ProcessFile::ProcessFile(const ProcessId& process) noexcept {
    file_ = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0u));
    if (file_ < 0 || is_running(process)) return;
    ::close(std::exchange(file_, -1));  // the number is another process's, or the process is ending
    errno = ESRCH;
}

ProcessFile::ProcessFile(ProcessFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

ProcessFile::~ProcessFile() {
    if (file_ >= 0) ::close(file_);
}

std::optional<int> exit_status(const ProcessId& process, const ProcessFile& file) {
    if (const auto facts = read_facts(process.pid); facts && facts->started == process.started && facts->has_ended())
        return facts->exit_code;
    return status_from_file(file.descriptor());
}

std::string describe_exit(int status) {
    if (WIFSIGNALED(status)) return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return fmt::format("exited with code {}", WEXITSTATUS(status));
}

std::string host_name() {
    std::array<char, HOST_NAME_MAX + 1> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
    return name.data();
}

void notice_forks() {
    [[maybe_unused]] static const int noticed = [] {
        original = getpid();
        return pthread_atfork(nullptr, nullptr, [] { forked = true; });
    }();
}

bool is_forked() noexcept {
    return forked.load(std::memory_order_relaxed);
}

void refuse_forked() {
    if (is_forked())
        throw Error(ErrorCode::unavailable,
                    fmt::format("process {} was made by fork() and is no rank of the job: only process {}, which had the "
                                "session then, can use guozhuang; the child may compute, exec or exit",
                                getpid(), original.load()));
}

void join(std::thread& thread) noexcept {
    if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
    else if (thread.joinable())
        thread.join();
}

void last_words_are_said() noexcept {
    words_are_said.store(true);
}

void end_process(std::string last_words, std::chrono::milliseconds grace) noexcept {
    const auto end = [last_words = std::move(last_words), grace] {
        wait_for_files({}, grace);
        if (!words_are_said.load()) log_error(last_words);
        flush(stdout);
        flush(stderr);
        wait_for_files({}, time_for_others);
        _exit(1);
    };
    try {
        std::thread(end).detach();
    } catch (const std::exception&) {
        end();
    }
}

}  // namespace guozhuang::base
