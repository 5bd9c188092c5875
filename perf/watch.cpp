#include "watch.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

/// Seconds in which the cores of this host were busy since it started, for anybody.
double busy_seconds() {
    std::ifstream file("/proc/stat");
    std::string cpu;
    double user = 0, nice = 0, system = 0, idle = 0, io = 0, interrupts = 0, soft = 0, stolen = 0;
    file >> cpu >> user >> nice >> system >> idle >> io >> interrupts >> soft >> stolen;
    return (user + nice + system + interrupts + soft + stolen) /
           static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double seconds_of(const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

/// The use of this machine so far.
struct Use {
    double busy_s;    ///< of all programs
    double own_s;     ///< of this rank
    double switches;  ///< of this rank, against its will
    Clock::time_point at;

    static Use now() {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        return {busy_seconds(), seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
                static_cast<double>(usage.ru_nivcsw), Clock::now()};
    }
};

Disturbance between(const MpiJob& job, const Use& start, const Use& end) {
    constexpr double most_foreign_cores = 0.1, most_switches_per_s = 100;
    const double seconds = std::chrono::duration<double>(end.at - start.at).count();
    const double foreign_s = end.busy_s - start.busy_s - job.add(end.own_s - start.own_s);
    const double cores = std::thread::hardware_concurrency();
    // Each core that was busy may have been counted a tick too much.
    const double known_to_s =
        std::min(cores, job.size() + 2.0) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    Disturbance found{.foreign_cores = job.max(std::max(foreign_s - known_to_s, 0.0) / seconds),
                      .switches_per_s = job.max((end.switches - start.switches) / seconds)};
    // Ranks that share a core take it from each other, and yielding counts as losing it.
    const bool alone = job.size() <= cores;
    found.disturbed = found.foreign_cores > most_foreign_cores ||
                      (alone && found.switches_per_s > most_switches_per_s);
    return found;
}

}  // namespace

std::optional<Disturbance> measure_watched(const MpiJob& job, bool watch,
                                           const std::function<void()>& measure) {
    if (!watch) {
        measure();
        return std::nullopt;
    }
    constexpr int most_tries = 3;
    for (int tries = 1;; ++tries) {
        job.align();
        const auto start = Use::now();
        measure();
        auto found = between(job, start, Use::now());
        found.tries = tries;
        if (!found.disturbed || tries == most_tries) return found;
    }
}

void add_to(Json& line, const std::optional<Disturbance>& disturbance) {
    if (!disturbance) return;
    line["foreign_cores"] = disturbance->foreign_cores;
    line["switches_per_s"] = disturbance->switches_per_s;
    line["tries"] = disturbance->tries;
    line["disturbed"] = disturbance->disturbed;
}

void print(const MpiJob& job, const std::optional<Disturbance>& disturbance) {
    if (disturbance && disturbance->disturbed && job.first())
        fmt::print(
            "# disturbed: others had {:.2f} cores, and took a rank's {:.0f} times a second\n",
            disturbance->foreign_cores, disturbance->switches_per_s);
}

}  // namespace guozhuang::perf
