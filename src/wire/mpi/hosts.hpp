#pragma once

#include <memory>
#include <mpi.h>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/config.hpp"
#include "topology/topology.hpp"
#include "wire/monitor.hpp"
#include "wire/remote_bells.hpp"
#include "wire/shm/host_memory.hpp"

namespace guozhuang::wire::mpi {

/// The size of a rank's stage, if it shares memory.
inline constexpr std::size_t stage_bytes = std::size_t{2} << 20;

/// This rank's host: the ranks on it, and what they share.
struct Host {
    topology::Topology topology = {};
    int hosts = 1;                                ///< how many there are
    std::vector<int> ranks;                       ///< of this host, ascending
    std::vector<Monitor::WatchedProcess> others;  ///< of them
    /// Ranks of the hosts before and after this one.
    std::vector<Monitor::WatchedProcess> linked;
    int local_rank = 0;     ///< of this rank among them
    int cores = 1;          ///< of this machine, that its ranks may use together
    int machine_ranks = 1;  ///< those ranks; more than this host has if hosts are simulated
    /// Empty if it is not wanted, or if a rank of the host could not map it (which logged one
    /// warning).
    std::optional<HostMemory> memory;
    /// To the ranks of other hosts; null if there are none, or if this rank cannot be rung.
    std::unique_ptr<RemoteBells> remote_bells;
    bool all_have_memory = false;      ///< on every host
    std::vector<int> without_threads;  ///< the ranks that may not call MPI on any thread
};

/// Whether everything that a rank hears of others comes with a ring.
bool rings_for_all(const Host& host) noexcept;
/// How threads of this rank wait. Reads spin_us of the configuration.
base::WaitSettings wait_settings_of(const Host& host, const base::Config& config);

/// How long this process lives after a death; empty: as long as the program wants.
std::optional<std::chrono::milliseconds> time_to_end(const base::Config& config);

/// The datagrams of ranks of other hosts, for the monitor. Both must outlive it.
Monitor::Source rings_of(Host& host, base::Doorbell& bell);
/// Bounds one sleep of a wait for news. `is_moving`: whether MPI is moving messages, which it may
/// do only as far as both sides look.
std::uint32_t longest_sleep_us(const Host& host, bool is_moving) noexcept;

/// Ranks to send an abort notice to: those whose doorbell this rank cannot ring. After a death on
/// this host its other ranks send notices too, so one rank of each other host is enough if all
/// hosts have shared memory to spread the news. After a death on another host, its ranks get none:
/// they know, or are dead themselves.
std::vector<int> ranks_to_notify(const Host& host, const base::AbortCause& cause);

/// Processes whose end this rank notices by itself.
std::vector<Monitor::WatchedProcess> watched_by(const Host& host);

/// Culprit, text and code of a rank's early end: it has died, or has left for a reason, or because
/// of the first cause that it knew. `theirs` and `bell` are null if this rank cannot see them.
std::tuple<int, std::string, ErrorCode> describe_end(const Monitor::End& end,
                                                     const trace::Activity* theirs,
                                                     const base::Doorbell* bell);

/// The activity that a rank writes; null without shared memory, or for a rank of another host.
trace::Activity* activity_of(Host& host, int rank);
/// See engine::JobControl::look_at().
std::optional<trace::RankStatus> look_at(Host& host, int rank);

/// Throws Error(unavailable): the ranks do not all share memory, so each must be allowed to call
/// MPI on any thread, and some are not.
[[noreturn]] void refuse_threads(const Host& host);

/// Ends this process because another has ended while the ranks were inside MPI, where no news
/// reaches them: only MPI can end those of other hosts. Returns true. `doing`: "init".
bool end_inside_mpi(const Monitor::End& end, std::string_view doing, bool has_other_hosts);

/// Collective over `world`, blocking. `threads`: whether this rank may call MPI on any thread.
/// Reads shared_memory and simulated_host of the configuration. Throws Error(wire). If a rank of
/// the host, or a linked one, dies meanwhile, this ends the process: nothing else ends an MPI call
/// that waits for the dead rank.
Host discover_host(MPI_Comm world, const base::Config& config, bool threads);

}  // namespace guozhuang::wire::mpi
