#include "wire/start_watch.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <guozhuang/error.hpp>
#include <initializer_list>
#include <iterator>
#include <span>

#include "base/config.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/parse.hpp"
#include "base/process.hpp"

namespace guozhuang::wire {
namespace {

constexpr const char* thread_name = "gz-starting";
// The pause between looks at all processes: at least this long, and this many times a look.
constexpr auto shortest_pause = std::chrono::milliseconds(500);
constexpr int look_times_per_pause = 20;
constexpr auto time_for_lowest = std::chrono::seconds(3);
// Names of the library's threads in /proc. A rank that has one of them counts as started: its
// session has begun, or is about to.
constexpr std::array<std::string_view, 3> names_of_ours = {"gz-starting\n", "gz-monitor\n",
                                                           "gz-coordinator\n"};

using Variables = std::map<std::string, std::string, std::less<>>;
using Names = std::span<const char* const>;

constexpr std::array job_names = {"PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "SLURM_JOB_ID",
                                  "SLURM_STEP_ID"};
constexpr std::array rank_names = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
constexpr std::array size_names = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
constexpr std::array local_size_names = {"OMPI_COMM_WORLD_LOCAL_SIZE"};

std::optional<int> number_of(std::string_view text) {
    const auto number = base::parse_number<int>(text);
    return number && *number >= 0 ? number : std::nullopt;
}

/// The number of the first of these variables that is set.
std::optional<int> first_number(const Variables& variables, Names names) {
    for (const char* name : names)
        if (const auto found = variables.find(name); found != variables.end())
            return number_of(found->second);
    return std::nullopt;
}

std::string contents(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

Variables environment_of(const std::filesystem::path& process) {
    Variables variables;
    const auto text = contents(process / "environ");
    for (std::string_view left(text); !left.empty();) {
        const auto assignment = left.substr(0, left.find('\0'));
        left.remove_prefix(std::min(assignment.size() + 1, left.size()));
        const auto name = assignment.substr(0, assignment.find('='));
        if (name.size() < assignment.size())
            variables.emplace(name, assignment.substr(name.size() + 1));
    }
    return variables;
}

/// State of a rank's process, from /proc.
struct ProcessSnapshot {
    base::ProcessId process = {};
    bool has_come = false;
    bool is_stopped = false;
    std::string text = {};  ///< "pid 4711, sleeping: ./train --epochs 3"
};

ProcessSnapshot look_at(const std::filesystem::path& folder, int pid, std::uint64_t numbering) {
    ProcessSnapshot snapshot{.process = {.pid = pid, .numbering = numbering}};
    base::look_up(snapshot.process);
    const auto state = base::state_of(snapshot.process);
    snapshot.is_stopped = state.starts_with("stopped");
    auto command = contents(folder / "cmdline");
    if (command.ends_with('\0')) command.pop_back();
    std::ranges::replace(command, '\0', ' ');
    snapshot.text = fmt::format("pid {}{}{}: {}", pid, state.empty() ? "" : ", ", state,
                                base::for_display(command));
    std::error_code error;
    for (const auto& task : std::filesystem::directory_iterator(folder / "task", error))
        snapshot.has_come = snapshot.has_come ||
                            std::ranges::count(names_of_ours, contents(task.path() / "comm")) > 0;
    return snapshot;
}

/// Calls `visit` with the rank, the folder and the id of each process of the job on this host.
template <class Visit>
void look_around(const LaunchedRank& self, const Visit& visit) {
    std::error_code error;
    for (const auto& folder : std::filesystem::directory_iterator("/proc", error)) {
        const auto pid = number_of(folder.path().filename().string());
        const auto theirs = pid ? find_launched_rank(environment_of(folder.path())) : std::nullopt;
        if (theirs && theirs->job == self.job) visit(theirs->rank, folder.path(), *pid);
    }
}

/// The processes of the job on this host, by rank. If a rank has several (a shell that has started
/// the program), one that has come counts, else the last to start.
std::map<int, ProcessSnapshot> processes_by_rank(const LaunchedRank& self) {
    std::map<int, ProcessSnapshot> snapshots;
    const auto numbering = base::this_process().numbering;
    look_around(self, [&](int rank, const std::filesystem::path& folder, int pid) {
        auto snapshot = look_at(folder, pid, numbering);
        const auto [known, is_first] = snapshots.try_emplace(rank, snapshot);
        const auto weight = [](const ProcessSnapshot& each) {
            return std::pair(each.has_come, each.process.started);
        };
        if (!is_first && weight(known->second) < weight(snapshot))
            known->second = std::move(snapshot);
    });
    return snapshots;
}

/// Text that this rank should log; empty if another rank should, unless this one `must` say it.
std::string describe(const LaunchedRank& self, double seconds, bool given_up, bool must,
                     std::span<const int> ended) {
    constexpr int most_described = 4;
    const auto snapshots = processes_by_rank(self);
    std::vector<int> waiting, unseen, others;
    std::string culprits;
    for (int rank = 0, described = 0; rank < self.size; ++rank) {
        const auto found = snapshots.find(rank);
        const bool is_here = found != snapshots.end(), has_come = is_here && found->second.has_come;
        if (has_come && !found->second.is_stopped)
            waiting.push_back(rank);
        else if (!ended.empty())  // others may be ending because of those
            continue;
        else if (!is_here || described == most_described)
            (is_here ? others : unseen).push_back(rank);
        else if (++described)
            culprits += fmt::format("; rank {} {} ({})", rank,
                                    has_come ? "does not come forward" : "has made no session",
                                    found->second.text);
    }
    if (!must && (waiting.empty() || waiting.front() != self.rank)) return {};
    if (waiting.empty()) waiting.push_back(self.rank);
    const auto add = [&](const char* before, std::span<const int> ranks, const char* after) {
        if (!ranks.empty())
            culprits += fmt::format("; {}{} {} {}", before, base::list_ranks(ranks),
                                    ranks.size() == 1 ? "has" : "have", after);
    };
    const bool sees_all = self.local_size == self.size;
    add("", others, "not come either");
    add(ended.size() == 1 ? "the process of " : "the processes of ", ended, "ended");
    add(sees_all ? "" : "whether ", unseen,
        sees_all ? "no process here: ended, or never started"
                 : "made theirs cannot be seen from here");
    if (culprits.empty()) culprits = "; all have come, and wait for MPI and its network";
    return fmt::format("the start of the session {} {:.1f} s on {}{}",
                       given_up ? "is given up after" : "has been waiting for", seconds,
                       base::list_ranks(waiting), culprits);
}

/// 0 if there is none to be seen.
int parent_of(int pid) {
    const auto status = contents(fmt::format("/proc/{}/status", pid));
    constexpr std::string_view key = "\nPPid:\t";
    const auto found = status.find(key);
    if (found == std::string::npos) return 0;
    const auto begin = found + key.size();
    return number_of(status.substr(begin, status.find('\n', begin) - begin)).value_or(0);
}

/// Reads those of the variables that the launcher has set for this process.
Variables own_variables(std::initializer_list<Names> lists) {
    Variables variables;
    for (const Names names : lists)
        for (const char* name : names)
            if (const auto value = base::environment(name)) variables.emplace(name, *value);
    return variables;
}

}  // namespace

void refuse_child_of_rank() {
    const auto told = own_variables({job_names, rank_names});
    const auto rank = first_number(told, rank_names);
    // A Slurm job may contain several launchers, and each counts ranks from 0.
    if (!rank || !(told.contains("PMIX_NAMESPACE") || told.contains("OMPI_MCA_orte_ess_jobid")))
        return;
    for (int pid = parent_of(static_cast<int>(base::this_process().pid)); pid > 1;
         pid = parent_of(pid)) {
        const std::filesystem::path folder = fmt::format("/proc/{}", pid);
        const auto theirs = '\0' + contents(folder / "environ");
        const bool is_same = std::ranges::all_of(told, [&](const auto& mine) {
            const auto& [name, value] = mine;
            return theirs.find(fmt::format("{0}{1}={2}{0}", '\0', name, value)) !=
                   std::string::npos;
        });
        if (!is_same) return;
        if (!look_at(folder, pid, base::this_process().numbering).has_come) continue;
        throw Error(ErrorCode::unavailable,
                    fmt::format("process {} was started by rank {} (process {}), and is no rank "
                                "itself: it cannot take part in the job. A worker that imports or "
                                "runs the rank's program again must not begin a session; in "
                                "Python, put init() under `if __name__ == \"__main__\":`",
                                base::this_process().pid, *rank, pid));
    }
}

std::optional<LaunchedRank> find_launched_rank(const Variables& variables) {
    LaunchedRank launched;
    for (const char* name : job_names)
        if (const auto found = variables.find(name); found != variables.end())
            launched.job.push_back(found->first + "=" + found->second);
    const auto rank = first_number(variables, rank_names),
               size = first_number(variables, size_names);
    if (launched.job.empty() || !rank || size.value_or(1) < 2) return std::nullopt;
    launched.rank = *rank;
    launched.size = *size;
    launched.local_size = first_number(variables, local_size_names).value_or(0);
    return launched;
}

std::optional<LaunchedRank> find_launched_rank() {
    return find_launched_rank(own_variables({job_names, rank_names, size_names, local_size_names}));
}

StartWatch::StartWatch(std::optional<LaunchedRank> self, const Limits& limits,
                       void (*end_job)()) noexcept
    : self_(std::move(self)), limits_(limits), end_job_(end_job) {
    if (!self_) return;
    try {
        thread_ = base::start_thread(thread_name, [this] {
            try {
                watch();
            } catch (const std::exception& error) {
                base::log_debug(error.what());
            }
        });
    } catch (const std::exception& error) {
        base::log_debug(error.what());
    }
}

StartWatch::~StartWatch() {
    stop_ = true;
    base::ring(bell_);
    if (thread_.joinable()) thread_.join();
}

/// False if the watch ends before that time.
bool StartWatch::wait_until(base::Deadline time) {
    const auto length =
        time == base::no_deadline ? std::chrono::hours(1) : time - base::Clock::now();
    const auto sleep = std::max(std::chrono::ceil<std::chrono::microseconds>(length),
                                std::chrono::microseconds(1));
    const base::WaitSettings settings{
        .spin = std::chrono::microseconds(0), .sleep_first = sleep, .sleep_limit = sleep};
    base::wait_until(bell_, settings, [&] { return stop_ || base::Clock::now() >= time; });
    return !stop_;
}

/// Returns the ranks that had processes here, all of which have ended; and looks for new ones.
std::vector<int> StartWatch::ended_ranks() {
    const auto numbering = base::this_process().numbering;
    look_around(*self_, [&](int rank, const std::filesystem::path&, int pid) {
        auto& processes = seen_[rank];
        if (std::ranges::find(processes, pid, &base::ProcessId::pid) != processes.end()) return;
        base::look_up(processes.emplace_back(base::ProcessId{.pid = pid, .numbering = numbering}));
    });
    std::vector<int> ended;
    for (auto& [rank, processes] : seen_) {
        std::erase_if(processes, [](const auto& each) { return !base::is_running(each); });
        if (processes.empty()) ended.push_back(rank);
    }
    return ended;
}

void StartWatch::watch() {
    const auto start = base::Clock::now();
    auto limit = limits_.limit.count() > 0 ? start + limits_.limit : base::no_deadline;
    auto pause = limits_.warn;
    auto next = limits_.warn.count() > 0 ? start + pause : base::no_deadline;
    // Other variables say which allocation a job has, and that may have several.
    const bool knows_job = std::ranges::any_of(self_->job, [](const std::string& variable) {
        return variable.starts_with("PMIX_NAMESPACE=") ||
               variable.starts_with("OMPI_MCA_orte_ess_jobid=");
    });
    base::Deadline next_look = knows_job ? start : base::no_deadline;
    std::vector<int> ended;
    for (bool is_last = false; wait_until(std::min({next, limit, next_look}));) {
        const auto look = base::Clock::now();
        const std::chrono::duration<double> age = look - start;
        bool has_death = false;
        if (look >= next_look) {
            const auto before = std::exchange(ended, ended_ranks());
            // Twice, since a wrapper may have ended while its child was being started.
            has_death = std::ranges::any_of(
                ended, [&](int rank) { return std::ranges::binary_search(before, rank); });
            const auto now = base::Clock::now();
            next_look = now + std::max<base::Clock::duration>(shortest_pause,
                                                              look_times_per_pause * (now - look));
        }
        const bool given_up = has_death || look >= limit;
        if (!given_up && look < next) continue;
        const auto text =
            describe(*self_, age.count(), given_up, has_death || is_last,
                     has_death ? std::span<const int>(ended) : std::span<const int>());
        if (given_up && !text.empty()) {
            base::end_process(text, std::chrono::milliseconds(0), end_job_);
            while (wait_until(base::no_deadline)) continue;  // its name shows that this rank came
        } else if (given_up) {  // the lowest rank says it, and ends the others
            is_last = true;
            limit = look + time_for_lowest;
            next = next_look = base::no_deadline;
        } else {
            if (!text.empty()) base::log_warning(text);
            next += pause;
            pause *= 2;
        }
    }
}

}  // namespace guozhuang::wire
