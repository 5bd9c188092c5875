#pragma once

#include "json_lines.hpp"
#include "mpi_job.hpp"

namespace guozhuang::perf {

struct IdleOptions {
    double seconds = 10;
    /// Measures with an allreduce pending that every rank but the last has submitted; needs two
    /// ranks.
    bool pending = false;
    bool threads = false;  ///< list the threads of every rank
};

/// Measures what the library costs while it has nothing to do: CPU time of all threads but the main
/// one, which sleeps meanwhile, in percent of a core. MPI's helper threads are included.
/// Collective. Throws a Refusal for `pending` on one rank.
void idle(const MpiJob& job, const IdleOptions& options, JsonLines& lines);

}  // namespace guozhuang::perf
