#include "idle/idle.hpp"

#include <fmt/format.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <guozhuang/operations.hpp>
#include <map>
#include <system_error>

#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

double cpu_seconds(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// CPU time of all threads of the process but the calling one.
double others_cpu_seconds() {
    return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
}

/// Sleeps in the kernel: the thread that measures idleness must not wake up meanwhile.
void stay_away(double seconds) {
    const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (timer < 0) throw std::system_error(errno, std::generic_category(), "timerfd_create");
    const double whole = std::floor(seconds);
    const itimerspec when{{},
                          {static_cast<time_t>(whole), static_cast<long>((seconds - whole) * 1e9)}};
    ::timerfd_settime(timer, 0, &when, nullptr);
    std::uint64_t expirations = 0;
    while (::read(timer, &expirations, sizeof expirations) < 0 && errno == EINTR) {
    }
    ::close(timer);
}

struct Thread {
    std::string name;
    double cpu_seconds;
};

/// By thread id; times to a clock tick. In /proc/PID/stat (proc(5)) the name is in parentheses, and
/// may contain some; user and system time are the 12th and 13th field after it.
std::map<std::string, Thread> threads_now() {
    std::map<std::string, Thread> threads;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(entry.path() / "stat");
        const std::string line((std::istreambuf_iterator<char>(file)), {});
        const auto open = line.find('('), close = line.rfind(')');
        if (close == std::string::npos) continue;  // the thread has just ended
        std::istringstream fields(line.substr(close + 1));
        std::string skipped;
        for (int field = 0; field < 11; ++field) fields >> skipped;
        double user = 0, system = 0;
        fields >> user >> system;
        const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
        threads[entry.path().filename()] = {line.substr(open + 1, close - open - 1),
                                            (user + system) / ticks};
    }
    return threads;
}

std::string listing(const MpiJob& job, const std::map<std::string, Thread>& before,
                    double seconds) {
    std::string text;
    for (const auto& [id, thread] : threads_now()) {
        const auto earlier = before.find(id);
        const double used =
            thread.cpu_seconds - (earlier == before.end() ? 0 : earlier->second.cpu_seconds);
        text += fmt::format("  rank {} {:<16} {:7.3f} %\n", job.rank(), thread.name,
                            100 * used / seconds);
    }
    return text;
}

/// This rank's percentage and, if asked for, its threads.
std::pair<double, std::string> measure(const MpiJob& job, const IdleOptions& options) {
    const auto before = options.threads ? threads_now() : std::map<std::string, Thread>{};
    const auto start = Clock::now();
    const double cpu = others_cpu_seconds();
    stay_away(options.seconds);
    // The two clocks are read one after the other, so the difference may be negative.
    const double used = std::max(others_cpu_seconds() - cpu, 0.0);
    const double percent = 100 * used / seconds_since(start);
    return {percent, options.threads ? listing(job, before, options.seconds) : std::string()};
}

}  // namespace

void idle(const MpiJob& job, const IdleOptions& options, JsonLines& lines) {
    if (options.pending && job.size() < 2)
        throw Refusal("idle --pending needs two ranks: one submits what the others wait for");
    float value = 1;
    allreduce(value, {.name = "gz-perf warm-up"});
    Handle unmatched;
    const bool last = job.rank() == job.size() - 1;
    if (options.pending && !last) unmatched = allreduce_async(value, {.name = "gz-perf unmatched"});
    job.align();
    const auto [percent, threads] = measure(job, options);
    if (options.pending && last) unmatched = allreduce_async(value, {.name = "gz-perf unmatched"});
    if (unmatched) unmatched.wait();

    const double most = job.max(percent);
    const auto all_threads = job.gather(threads);
    for (const auto& text : all_threads) fmt::print("{}", text);
    if (job.first())
        fmt::print("idle{} for {} s at {} ranks: {:.3f} % of a core at most\n",
                   options.pending ? " with one operation pending" : "", options.seconds,
                   job.size(), most);
    lines.write({{"kind", "idle"}, {"ranks", job.size()}, {"cpu_percent_max", most}});
}

}  // namespace guozhuang::perf
