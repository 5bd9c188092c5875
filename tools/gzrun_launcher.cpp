#include "gzrun_launcher.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <sched.h>
#include <set>
#include <sstream>
#include <unistd.h>

namespace gzrun {

namespace {

using Words = std::vector<std::string>;

std::string version_of(const std::string& path) {
    const auto close = [](std::FILE* pipe) { pclose(pipe); };
    const std::unique_ptr<std::FILE, decltype(close)> pipe(
        popen((quoted({path, "--version"}) + " 2>&1 < /dev/null").c_str(), "r"), close);
    std::string output;
    std::array<char, 4096> part{};
    while (pipe && std::fgets(part.data(), part.size(), pipe.get())) output += part.data();
    return output;
}

/// Each launcher by what its --version prints. docs/installing.md says what its MPI needs, and why.
constexpr struct {
    const char* words;
    LauncherKind kind;
    const char* rank_variable;
    const char* across_hosts;  ///< options with several hosts
} known[] = {
    {"(Open MPI) 4.", LauncherKind::open_mpi_4, "OMPI_COMM_WORLD_RANK", ""},
    {"(OpenRTE) 4.", LauncherKind::open_mpi_4, "OMPI_COMM_WORLD_RANK", ""},  // its mpiexec
    {"(Open MPI) 5.", LauncherKind::open_mpi_5, "OMPI_COMM_WORLD_RANK", "--with-ft ulfm"},
    {"Intel(R) MPI Library", LauncherKind::intel_mpi, "PMI_RANK", ""},
    {"HYDRA build details", LauncherKind::mpich, "PMI_RANK", ""},
};

/// The cores that this process may use: Open MPI starts no more ranks unless told to.
int cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    std::set<std::string> found;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        std::ifstream file(
            fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
        std::string threads = std::to_string(cpu);
        std::getline(file, threads);
        found.insert(threads);
    }
    return static_cast<int>(found.size());
}

void add_split(Words& words, const std::string& text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) words.push_back(word);
}

/// Open MPI passes only what it is told to on to other hosts.
void export_settings(Words& words) {
    for (char** entry = environ; *entry; ++entry) {
        const std::string setting = *entry;
        if (!setting.starts_with("GUOZHUANG_")) continue;
        words.insert(words.end(), {"-x", setting.substr(0, setting.find('='))});
    }
}

Words open_mpi(const Launcher& launcher, const Options& options) {
    const bool is_4 = launcher.kind == LauncherKind::open_mpi_4;
    Words words;
    if (geteuid() == 0)
        words = {"env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
    words.insert(words.end(), {launcher.path, "-np", std::to_string(options.ranks)});
    if (!options.hosts.empty()) {
        words.insert(words.end(), {"--host", options.hosts});
        export_settings(words);
    } else if (options.ranks > cores()) {
        add_split(words, is_4 ? "--oversubscribe" : "--map-by :oversubscribe");
        add_split(words, "--bind-to none --mca mpi_yield_when_idle 1");
    }
    if (!options.interface.empty()) {
        words.insert(words.end(), {"--mca", "btl_tcp_if_include", options.interface});
        add_split(words, is_4 ? "--mca oob_tcp_if_include" : "--prtemca prte_if_include");
        words.push_back(options.interface);
    }
    if (options.label) add_split(words, is_4 ? "--tag-output" : "--output tag");
    return words;
}

/// Intel MPI takes one number of ranks for all hosts.
void add_hosts_for_intel(Words& words, const std::string& hosts) {
    std::string names;
    std::set<int> counts;
    std::istringstream in(hosts);
    for (std::string host; std::getline(in, host, ',');) {
        names += (names.empty() ? "" : ",") + host.substr(0, host.find(':'));
        counts.insert(slots_of(host));
    }
    if (counts.size() > 1)
        throw BadInput(fmt::format("-H {}: Intel MPI wants as many ranks on each host", hosts));
    words.insert(words.end(), {"-hosts", names, "-ppn", std::to_string(*counts.begin())});
}

Words hydra(const Launcher& launcher, const Options& options) {
    Words words{launcher.path, "-n", std::to_string(options.ranks)};
    if (!options.hosts.empty() && launcher.kind == LauncherKind::intel_mpi)
        add_hosts_for_intel(words, options.hosts);
    else if (!options.hosts.empty())
        words.insert(words.end(), {"-hosts", options.hosts});
    if (options.interface.find('/') != std::string::npos)
        throw BadInput("--interface: this launcher takes the name of an interface, not " +
                       options.interface);
    if (!options.interface.empty()) words.insert(words.end(), {"-iface", options.interface});
    if (options.label) words.emplace_back("-prepend-rank");
    return words;
}

}  // namespace

int slots_of(const std::string& hosts) {
    int slots = 0;
    std::istringstream in(hosts);
    for (std::string host; std::getline(in, host, ',');) {
        const auto colon = host.find(':');
        int count = 1;
        const char* end = host.data() + host.size();
        if (colon != std::string::npos) {
            const auto [stop, error] = std::from_chars(host.data() + colon + 1, end, count);
            if (error != std::errc() || stop != end) count = 0;
        }
        if (colon == 0 || host.empty() || count < 1)
            throw BadInput(fmt::format("-H: '{}' is not HOST or HOST:RANKS", host));
        slots += count;
    }
    return slots;
}

Launcher find_launcher(const std::string& path) {
    std::string tried;
    for (const auto& name : path.empty() ? Words{"mpirun", "mpiexec"} : Words{path}) {
        const std::string version = version_of(name);
        for (const auto& [words, kind, variable, across_hosts] : known)
            if (version.find(words) != std::string::npos)
                return {name, kind, variable, across_hosts};
        tried += fmt::format("\n{} --version printed:\n{}", name, version);
    }
    throw BadInput("found no launcher of Open MPI 4 or 5, MPICH or Intel MPI" + tried);
}

Words command_line(const Launcher& launcher, const Options& options, const Words& rank_command) {
    const bool is_hydra =
        launcher.kind == LauncherKind::mpich || launcher.kind == LauncherKind::intel_mpi;
    Words words = (is_hydra ? hydra : open_mpi)(launcher, options);
    if (!options.hosts.empty()) add_split(words, launcher.across_hosts);
    add_split(words, options.launcher_options);
    words.insert(words.end(), rank_command.begin(), rank_command.end());
    return words;
}

std::string quoted(const Words& command) {
    std::string line;
    for (const auto& word : command) {
        const bool plain =
            !word.empty() && word.find_first_not_of(
                                 "abcdefghijklmnopqrstuvwxyz0123456789"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ_-+=./:,@%") == std::string::npos;
        if (!line.empty()) line += ' ';
        if (!plain) line += '\'';
        for (const char letter : word) line += letter == '\'' ? "'\\''" : std::string(1, letter);
        if (!plain) line += '\'';
    }
    return line;
}

}  // namespace gzrun
