#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/wait.hpp"
#include "topology/quota.hpp"

namespace guozhuang::topology {

/// Cores of one host, one bit each; cores beyond the last bit do not count. Comparable between the
/// processes of a host.
using CoreMask = std::array<std::uint64_t, 16>;

int count(const CoreMask& mask) noexcept;

/// What the hardware under this process looks like. Sizes are bytes; a size or count that the host
/// does not tell has the value given here.
struct Machine {
    /// Physical cores in the calling thread's affinity mask (hardware threads where unknown).
    CoreMask cores{};
    std::size_t l2_bytes = std::size_t{1} << 20;  ///< level-2 cache for each core
    /// The last-level cache that the first of these cores uses.
    std::size_t last_level_bytes = std::size_t{8} << 20;
    int cores_per_last_level = 1;  ///< cores of the host that share it
    int numa_nodes = 1;            ///< of the host
    Quota quota{};                 ///< of this process's time on them
    int threads = 1;               ///< hardware threads in the affinity mask
    /// The hardware threads there would be if nobody had bound this process.
    int host_threads = 1;
    /// hwloc told: otherwise the values are defaults, and the affinity mask alone is real.
    bool known = false;
};

/// Reads hardware (hwloc) and quota: some milliseconds. Never throws: the unknown keeps its
/// default.
Machine discover();

/// discover(), once for each process: by the thread that asks first. Any thread.
const Machine& this_machine();

/// How many cores' worth of time this process may use.
int usable_cores(const Machine& machine);

/// For people, one line: "2 cores, L2 1024 KiB each, last-level cache 32 MiB shared by 2, 1 NUMA
/// node".
std::string describe(const Machine& machine);

/// What to tell a user whose process computes with `wanted` threads and has been bound to fewer
/// hardware threads; empty if all is well. A rank with one thread of its own is: the coordinator
/// sleeps while a caller waits or nothing is pending, so that it needs no core to itself.
std::string binding_warning(const Machine& machine, int wanted);

/// How ranks should wait on a host of which `ranks` ranks may use `cores` cores together: they spin
/// for long only if each has a core of its own, because a spinning rank otherwise keeps the one
/// that it waits for from running.
base::WaitSettings wait_settings(int ranks, int cores) noexcept;

}  // namespace guozhuang::topology
