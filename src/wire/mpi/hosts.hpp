#pragma once

#include <mpi.h>
#include <optional>
#include <vector>

#include "wire/host_memory.hpp"
#include "wire/monitor.hpp"

namespace guozhuang::wire::mpi {

/// Which ranks share this rank's host, and what they share.
struct Host {
    std::vector<int> ranks;             ///< of this host, ascending
    std::vector<Monitor::Peer> others;  ///< of them
    int position = 0;                   ///< of this rank among them
    int index = 0;                      ///< of this host among the hosts, which are ordered by their first rank
    int hosts = 1;
    bool homogeneous = true;           ///< every host has as many ranks
    int cores = 1;                     ///< that the ranks of this host may use together
    std::optional<HostMemory> memory;  ///< empty if not wanted, or if a rank of the host could not have it (then one warning was logged)
};

/// Finds out; collective over `world`, blocking. The memory has stages where all ranks are on one host. Throws Error(wire). A rank of the host
/// that dies meanwhile ends this process: nothing else ends a call of MPI that waits for it.
Host meet_host(MPI_Comm world, bool want_memory);

}  // namespace guozhuang::wire::mpi
