#pragma once

#include <span>
#include <vector>

namespace guozhuang::topology {

/// The ranks of a group as a grid, as one of them sees it: a row is a host, a column those that
/// have the same local rank. Hosts are in the order of their first ranks, the ranks of a host in
/// the order of the group. A value; pure.
class HostGrid {
public:
    /// `hosts`: the host of each world rank. `ranks`: world ranks by group rank. `rank`: the one
    /// that looks, one of them.
    HostGrid(std::span<const int> hosts, std::span<const int> ranks, int rank);
    /// The group of all ranks.
    HostGrid(std::span<const int> hosts, int rank);

    /// World ranks of those on this one's host, itself included; and its rank among them.
    const std::vector<int>& local() const noexcept { return local_; }
    int local_rank() const noexcept { return local_rank_; }

    /// If it is even: world ranks of those that have this one's local rank, one of each host; else
    /// empty.
    const std::vector<int>& across() const noexcept { return across_; }
    /// This one's host among the group's; so its rank across, too.
    int cross_rank() const noexcept { return cross_rank_; }
    int hosts() const noexcept { return hosts_; }
    /// World ranks of all of them, those of a host beside each other: around this ring as many hops
    /// lead from host to host as there are hosts. The same on all ranks.
    const std::vector<int>& host_by_host() const noexcept { return host_by_host_; }
    /// This one's rank there.
    int ring_rank() const noexcept { return ring_rank_; }
    /// Whether there are as many ranks on each host.
    bool is_even() const noexcept { return !across_.empty(); }

private:
    std::vector<int> local_, across_, host_by_host_;
    int local_rank_ = 0, cross_rank_ = 0, ring_rank_ = 0, hosts_ = 0;
};

}  // namespace guozhuang::topology
