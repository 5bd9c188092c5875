#pragma once

#include <span>
#include <vector>

namespace guozhuang::topology {

/// The ranks of a group as a grid, seen from one of them: a row is a host, a column has the ranks
/// with the same local rank. Hosts are in the order of their first ranks, the ranks of a host in
/// the order of the group. A value; pure.
class HostGrid {
public:
    /// `hosts`: the host of each world rank. `ranks`: world ranks by group rank. `rank`: the world
    /// rank from which the grid is seen, one of the group.
    HostGrid(std::span<const int> hosts, std::span<const int> ranks, int rank);
    /// The group of all ranks.
    HostGrid(std::span<const int> hosts, int rank);

    /// World ranks of the group's ranks on this rank's host, itself included.
    const std::vector<int>& local() const noexcept { return local_; }
    int local_rank() const noexcept { return local_rank_; }

    /// If the grid is even: the world ranks, one of each host, that have this rank's local rank.
    /// Otherwise empty.
    const std::vector<int>& across() const noexcept { return across_; }
    /// The number of this rank's host among the group's hosts; also its rank in across().
    int cross_rank() const noexcept { return cross_rank_; }
    int hosts() const noexcept { return hosts_; }
    /// All world ranks, host after host: a ring in this order has as few hops between hosts as
    /// there are hosts. The same on all ranks.
    const std::vector<int>& host_by_host() const noexcept { return host_by_host_; }
    /// This rank's number in host_by_host().
    int ring_rank() const noexcept { return ring_rank_; }
    /// Whether all hosts have the same number of ranks.
    bool is_even() const noexcept { return !across_.empty(); }

private:
    std::vector<int> local_, across_, host_by_host_;
    int local_rank_ = 0, cross_rank_ = 0, ring_rank_ = 0, hosts_ = 0;
};

}  // namespace guozhuang::topology
