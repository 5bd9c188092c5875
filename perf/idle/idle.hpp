#pragma once

#include "json_lines.hpp"
#include "mpi_job.hpp"

namespace guozhuang::perf {

struct IdleOptions {
    double seconds = 10;
    /// An allreduce is outstanding that every rank but the last has submitted; needs two ranks.
    bool pending = false;
    bool threads = false;  ///< list the threads of every rank
};

/// Measures what the library costs while nothing is to be done: CPU time of all threads but the
/// main one, which sleeps meanwhile, in percent of a core. MPI's own helper threads are among them.
/// Collective. Throws a Refusal for pending at one rank.
void idle(const MpiJob& job, const IdleOptions& options, JsonLines& lines);

}  // namespace guozhuang::perf
