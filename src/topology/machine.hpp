#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/wait.hpp"
#include "topology/quota.hpp"

namespace guozhuang::topology {

/// A set of cores of one host, a bit for each; higher cores are left out. Comparable between the
/// processes of a host.
using CoreMask = std::array<std::uint64_t, 16>;

int count(const CoreMask& mask) noexcept;

/// The hardware under this process. Sizes are bytes. A size or count that the system does not
/// report keeps the value given here.
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
    /// The hardware threads that this process would have if it were not bound.
    int host_threads = 1;
    /// Whether hwloc has reported them. If not, only the affinity mask is real.
    bool known = false;
};

/// Reads the hardware (hwloc) and the quota, which takes some milliseconds. Never throws: what is
/// unknown keeps its default.
Machine discover();

/// The result of discover(), which the first call runs. Any thread.
const Machine& this_machine();

/// How many cores this process may use: the cores in its mask, within its quota.
int usable_cores(const Machine& machine);

/// One line for users: "2 cores, L2 1024 KiB each, last-level cache 32 MiB shared by 2, 1 NUMA
/// node".
std::string describe(const Machine& machine);

/// A warning if the process computes with `wanted` threads and is bound to fewer hardware threads;
/// otherwise empty. The coordinator needs no thread of its own: it sleeps while a caller waits, and
/// while nothing is pending.
std::string binding_warning(const Machine& machine, int wanted);

/// How ranks should wait on a host on which `ranks` ranks may use `cores` cores together. They spin
/// for long only if each has its own core; otherwise a spinning rank keeps the one that it waits
/// for from running.
base::WaitSettings wait_settings(int ranks, int cores) noexcept;

}  // namespace guozhuang::topology
