#include "base/process.hpp"

#include <algorithm>
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
#include <signal.h>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/parse.hpp"
#include "base/wait.hpp"

namespace guozhuang::base {
namespace {

/// The fields of /proc/PID/stat that are used here (proc_pid_stat(5)).
struct Facts {
    char state = '?';
    int threads = 0;
    std::uint64_t started = 0;
    int exit_code = 0;

    /// The first thread of a process may end before the others: the process then still runs.
    bool has_ended() const noexcept { return state == 'X' || (state == 'Z' && threads <= 1); }
};

/// Reads them. Empty, with errno set, if that fails: ENOENT or ESRCH if there is no such process.
/// Allocates nothing.
std::optional<Facts> read_facts(std::int64_t pid) noexcept {
    std::array<char, 1024> text{};
    std::snprintf(text.data(), text.size(), "/proc/%lld/stat", static_cast<long long>(pid));
    const int file = open(text.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return std::nullopt;
    const auto length = read(file, text.data(), text.size());
    const int error = errno;
    ::close(file);
    errno = error;
    if (length <= 0) return std::nullopt;
    std::string_view line(text.data(), static_cast<std::size_t>(length));
    const auto behind_name = line.rfind(')');  // the name may itself contain a parenthesis
    if (behind_name == std::string_view::npos) return std::nullopt;
    line.remove_prefix(std::min(behind_name + 2, line.size()));
    Facts facts;
    for (int number = 3; !line.empty(); ++number) {
        const auto field = line.substr(0, line.find_first_of(" \n"));
        line.remove_prefix(std::min(field.size() + 1, line.size()));
        if (number == 3 && !field.empty()) facts.state = field.front();
        if (number == 20) facts.threads = parse_number<int>(field).value_or(0);
        if (number == 22) facts.started = parse_number<std::uint64_t>(field).value_or(0);
        if (number == 52) facts.exit_code = parse_number<int>(field).value_or(0);
    }
    return facts;
}

std::uint64_t own_numbering() {
    struct stat facts {};
    return stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

/// The exit status by ioctl, which a pidfd tells since Linux 6.15 even if the parent has waited for
/// the process. Older headers do not declare it.
std::optional<int> status_from_file(int file) {
    struct Information {
        std::uint64_t mask = 1u << 3;  // PIDFD_INFO_EXIT
        std::uint64_t group = 0;
        std::array<std::uint32_t, 11> ids{};
        std::int32_t exit_code = 0;
    } information;
    static_assert(sizeof information == 64);
    const auto request = _IOWR(0xFF, 11, Information);  // PIDFD_GET_INFO
    if (file < 0 || ioctl(file, request, &information) != 0 || (information.mask & (1u << 3)) == 0)
        return std::nullopt;
    return information.exit_code;
}

std::atomic<bool> words_are_said{false};
std::atomic<unsigned> ending{0};  ///< the number of the end to come; 0: none
constexpr auto time_to_end_job = std::chrono::seconds(1);

/// Counts the callers of hold_process().
struct Holds {
    Doorbell bell;
    Mutex mutex;
    int count GUOZHUANG_GUARDED_BY(mutex) = 0;
    Deadline until GUOZHUANG_GUARDED_BY(mutex){};

    std::chrono::milliseconds left() {
        const Lock lock(mutex);
        return count > 0 ? std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now())
                         : std::chrono::milliseconds(0);
    }
};

Holds& holds() {
    // Never destroyed: a process may be held while it exits.
    static auto* const instance = new Holds;
    return *instance;
}

/// Returns whether it had to wait.
bool wait_for_holds(const std::string& last_words) {
    const auto limit = holds().left();
    if (limit.count() <= 0) return false;
    log(LogLevel::warning, "{}; the end of this process is held, for {:.1f} s at most", last_words,
        static_cast<double>(limit.count()) / 1000);
    const WaitSettings settings{.spin = std::chrono::microseconds(0),
                                .sleep_limit = std::chrono::milliseconds(100)};
    wait_until(holds().bell, settings, [] { return holds().left().count() <= 0; });
    return true;
}

// Set in children of fork().
std::atomic<bool> forked{false};
std::atomic<pid_t> original{0};

/// The actions that a child of fork() takes first. The mutex keeps fork() away while the list
/// changes.
struct Actions {
    Mutex mutex;
    std::vector<const ForkChildHandler*> all GUOZHUANG_GUARDED_BY(mutex);
};

Actions& actions() {
    static auto* const instance = new Actions;  // never destroyed: a process may fork while it ends
    return *instance;
}

void before_fork() GUOZHUANG_THREAD_ANNOTATION(no_thread_safety_analysis) {
    actions().mutex.lock();
}

void after_fork() GUOZHUANG_THREAD_ANNOTATION(no_thread_safety_analysis) {
    actions().mutex.unlock();
}

void begin_as_child() {
    after_fork();
    if (forked.exchange(true)) return;  // the child of a child
    const Lock lock(actions().mutex);
    for (const auto* action : actions().all) action->act();
}

/// Runs `action` on a new thread, since it may block for ever.
bool is_started(void (*action)()) noexcept try {
    start_thread("gz-exit", action).detach();
    return true;
} catch (const std::exception&) {
    return false;
}

void flush(std::FILE* stream) noexcept {
    if (ftrylockfile(stream) != 0) return;  // another thread may hold it for ever
    std::fflush(stream);
    funlockfile(stream);
}

}  // namespace

ProcessId this_process() {
    const auto facts = read_facts(getpid());
    return {getpid(), facts ? facts->started : 0, own_numbering()};
}

void look_up(ProcessId& process) {
    if (process.started != 0 || process.numbering != own_numbering()) return;
    if (const auto facts = read_facts(process.pid)) process.started = facts->started;
}

bool is_running(const ProcessId& process) {
    const auto facts = read_facts(process.pid);
    if (!facts)
        return errno != ENOENT && errno != ESRCH &&
               (::kill(static_cast<pid_t>(process.pid), 0) == 0 || errno != ESRCH);
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
    ::close(std::exchange(file_, -1));  // the pid is another process's, or this one is ending
    errno = ESRCH;
}

ProcessFile::ProcessFile(ProcessFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

ProcessFile::~ProcessFile() {
    if (file_ >= 0) ::close(file_);
}

std::optional<int> exit_status(const ProcessId& process, const ProcessFile& file) {
    if (const auto facts = read_facts(process.pid);
        facts && facts->started == process.started && facts->has_ended())
        return facts->exit_code;
    return status_from_file(file.descriptor());
}

std::string describe_exit(int status) {
    if (WIFSIGNALED(status))
        return fmt::format("killed by signal {} ({})", WTERMSIG(status),
                           strsignal(WTERMSIG(status)));
    return fmt::format("exited with code {}", WEXITSTATUS(status));
}

std::string host_name() {
    std::array<char, HOST_NAME_MAX + 1> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
    return name.data();
}

void survive_broken_pipes() noexcept {
    struct sigaction action {};
    if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
    action.sa_handler = [](int) {};  // to ignore the signal would be inherited
    action.sa_flags = SA_RESTART;
    sigaction(SIGPIPE, &action, nullptr);
}

void notice_forks() {
    [[maybe_unused]] static const int noticed = [] {
        original = getpid();
        return pthread_atfork(before_fork, after_fork, begin_as_child);
    }();
}

ForkChildHandler::ForkChildHandler(std::function<void()> action) : action_(std::move(action)) {
    const Lock lock(actions().mutex);
    actions().all.push_back(this);
}

ForkChildHandler::~ForkChildHandler() {
    const Lock lock(actions().mutex);
    std::erase(actions().all, this);
}

bool is_forked() noexcept {
    return forked.load(std::memory_order_relaxed);
}

void refuse_forked() {
    if (is_forked())
        throw Error(
            ErrorCode::unavailable,
            fmt::format("process {} was made by fork() and is no rank of the job: only process {}, "
                        "which had the "
                        "session then, can use guozhuang; the child may compute, exec or exit",
                        getpid(), original.load()));
}

SignalsBlocked::SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
        sigdelset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

SignalsBlocked::~SignalsBlocked() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void join(std::thread& thread) noexcept {
    if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
    else if (thread.joinable())
        thread.join();
}

void suppress_last_words() noexcept {
    words_are_said.store(true);
}

void end_process(std::string last_words, std::chrono::milliseconds grace,
                 void (*end_job)()) noexcept {
    static std::atomic<unsigned> last{0};
    const auto number = last.fetch_add(1) + 1;
    if (unsigned none = 0; !ending.compare_exchange_strong(none, number)) return;
    const auto end = [last_words = std::move(last_words), grace, end_job, number]() noexcept {
        const auto is_wanted = [number] { return ending.load() == number; };
        try {
            wait_for_files({}, grace);
            while (is_wanted() && wait_for_holds(last_words)) wait_for_files({}, grace);
            if (!is_wanted()) return;
            if (!words_are_said.load()) log_error(last_words);
            flush(stdout);
            flush(stderr);
            wait_for_files({}, time_for_others);
            if (end_job != nullptr && is_started(end_job)) wait_for_files({}, time_to_end_job);
        } catch (const std::exception&) {
            // without memory the words are lost, but not the end
        }
        _exit(1);
    };
    try {
        start_thread("gz-exit", end).detach();
    } catch (const std::exception&) {
        end();
    }
}

void keep_process() noexcept {
    ending = 0;
}

void hold_process(std::chrono::milliseconds limit) noexcept {
    const Lock lock(holds().mutex);
    ++holds().count;
    holds().until = std::max(holds().until, deadline_after(limit));
}

void release_process() noexcept {
    {
        const Lock lock(holds().mutex);
        if (--holds().count == 0) holds().until = {};
    }
    ring(holds().bell);
}

}  // namespace guozhuang::base
