#pragma once

#include <functional>
#include <optional>

#include "json_lines.hpp"
#include "mpi_job.hpp"

namespace guozhuang::perf {

/// How much others had of the cores of this host during a measurement. The same on all ranks.
struct Disturbance {
    double foreign_cores = 0;   ///< used by other programs, interrupts and other virtual machines
    double switches_per_s = 0;  ///< of the rank that lost its core to another thread most often
    bool disturbed = false;     ///< so much that the figures are not to be trusted
    int tries = 1;              ///< how often it was measured
};

/// Measures once; with `watch` again if it was disturbed, three times at most, and the last time
/// counts. Collective; with `watch` for ranks that are all on one host.
std::optional<Disturbance> measure_watched(const MpiJob& job, bool watch,
                                           const std::function<void()>& measure);

/// Adds to the line of what was measured how it was disturbed, if that was watched.
void add_to(Json& line, const std::optional<Disturbance>& disturbance);
/// Prints a line on rank 0 if it was disturbed.
void print(const MpiJob& job, const std::optional<Disturbance>& disturbance);

}  // namespace guozhuang::perf
