#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace guozhuang::wire {

/// The launcher of this process, as the environment shows it.
struct Launcher {
    std::string evidence;  ///< "PMI_SIZE=4"
    int ranks = 1;         ///< at least this many processes were started
};

/// A launcher that MPI libraries know. Empty if none started this process.
std::optional<Launcher> find_mpi_launcher();

/// Why the launcher would not let a job go on after a death; empty if it would, as far as the
/// environment shows.
std::string why_survivors_end();

/// For a job that has one rank: throws Error(unavailable) if the environment says that a launcher
/// has started several processes; each would be such a job, and nobody would notice. Logs a warning
/// if that is possible but not certain. `mpi` is the library's name.
void refuse_lone_job(std::string_view mpi);

}  // namespace guozhuang::wire
