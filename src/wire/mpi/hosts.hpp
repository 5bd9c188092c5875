#pragma once

#include <mpi.h>
#include <optional>
#include <vector>

#include "base/config.hpp"
#include "topology/topology.hpp"
#include "wire/monitor.hpp"
#include "wire/shm/host_memory.hpp"

namespace guozhuang::wire::mpi {

/// The size of a rank's stage, where it shares memory.
inline constexpr std::size_t stage_bytes = std::size_t{2} << 20;

/// Which ranks share this rank's host, and what they share.
struct Host {
    topology::Topology topology = {};
    int hosts = 1;                                ///< how many there are
    std::vector<int> ranks;                       ///< of this host, ascending
    std::vector<Monitor::WatchedProcess> others;  ///< of them
    /// On the first rank of a host: the first ranks of the hosts before and after it.
    std::vector<Monitor::WatchedProcess> linked;
    int local_rank = 0;     ///< of this rank among them
    int cores = 1;          ///< of this machine, that its ranks may use together
    int machine_ranks = 1;  ///< those; more than this host's where hosts are simulated
    /// Empty if it is not wanted, or if a rank of the host could not have it (one warning was
    /// logged then).
    std::optional<HostMemory> memory;
    bool all_have_memory = false;      ///< on every host
    std::vector<int> without_threads;  ///< the ranks that may not call MPI on any thread
};

/// Whom this rank tells of the end of the job: every rank that it cannot ring for. Of a death on
/// this host its other ranks tell too: so if all hosts have memory in which their ranks tell each
/// other, one rank of each other host will do. Where somebody of another host has died, those of
/// that host know or are dead themselves.
std::vector<int> ranks_to_notify(const Host& host, const base::AbortCause& cause);

/// All whose end this rank notices by itself.
std::vector<Monitor::WatchedProcess> watched_by(const Host& host);

/// Of a rank that has ended too early: that it has died, or why it has left. `theirs`: null where
/// it cannot be seen.
struct EarlyEnd {
    std::string text;
    ErrorCode code;
};
EarlyEnd describe_end(const Monitor::End& end, const trace::Activity* theirs);

/// Where a rank says what it does; null where that cannot be seen: without shared memory, or on
/// another host.
trace::Activity* activity_of(Host& host, int rank);
/// What another rank does; empty where that cannot be seen: without shared memory, or on another
/// host.
std::optional<trace::RankStatus> look_at(Host& host, int rank);

/// Throws Error(unavailable): what these ranks share demands that MPI may be called on any thread,
/// and on some of them it may not.
[[noreturn]] void refuse_threads(const Host& host);

/// Finds out; collective over `world`, blocking. `threads`: whether this rank may call MPI on any
/// thread. Of the configuration, shared_memory and simulated_host count. Throws Error(wire). A rank
/// of the host, or a linked one, that dies meanwhile ends this process: nothing else ends a call of
/// MPI that waits for it.
Host discover_host(MPI_Comm world, const base::Config& config, bool threads);

}  // namespace guozhuang::wire::mpi
