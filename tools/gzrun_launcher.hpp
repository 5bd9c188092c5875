// The launcher of an MPI: which one it is, and the command that starts a job with it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace gzrun {

/// Wrong arguments, or a machine without what they need: gzrun ends with code 2.
struct BadInput : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    int ranks = 0;
    int least_ranks = 0;  ///< that must return 0; 0: all
    std::string hosts;    ///< empty: this one; otherwise as in "a:4,b:4"
    std::string launcher;
    std::string launcher_options;
    std::string interface;
    bool label = false;
    int grace_s = 90;
    std::vector<std::string> program;  ///< and its arguments
};

enum class LauncherKind { open_mpi_4, open_mpi_5, mpich, intel_mpi };

struct Launcher {
    std::string path;
    LauncherKind kind;
    std::string rank_variable;  ///< of the environment of each process
    std::string across_hosts;   ///< options that its MPI needs with several hosts
};

/// How many ranks `hosts` has room for; a host without a number has room for one.
int slots_of(const std::string& hosts);

/// Asks `path`, or mpirun and then mpiexec if it is empty, for its version.
Launcher find_launcher(const std::string& path);

/// The command that starts `rank_command` as each rank of the job.
std::vector<std::string> command_line(const Launcher& launcher, const Options& options,
                                      const std::vector<std::string>& rank_command);

/// The command as a shell takes it.
std::string quoted(const std::vector<std::string>& command);

}  // namespace gzrun
