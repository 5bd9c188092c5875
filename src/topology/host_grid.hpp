#pragma once

#include <span>
#include <vector>

namespace guozhuang::topology {

/// The members of a group as a grid, as one of them sees it: a row is a host, a column those that
/// have the same place on each host. Hosts are in the order of their first members, the members of
/// a host in the order of the group. A value; pure.
class HostGrid {
public:
    /// `hosts`: the host of each world rank. `members`: world ranks, by position in the group.
    /// `rank`: the one that looks, a member.
    HostGrid(std::span<const int> hosts, std::span<const int> members, int rank);
    /// The group of all ranks.
    HostGrid(std::span<const int> hosts, int rank);

    /// World ranks of the members on this one's host, itself included; and its place among them.
    const std::vector<int>& local() const noexcept { return local_; }
    int local_rank() const noexcept { return local_rank_; }

    /// If it is even: world ranks of the members that have this one's place, one of each host; else
    /// empty.
    const std::vector<int>& across() const noexcept { return across_; }
    /// This one's host among the group's; so its place across, too.
    int cross_rank() const noexcept { return cross_rank_; }
    int hosts() const noexcept { return hosts_; }
    /// World ranks of all members, those of a host beside each other: around this ring as many hops
    /// lead from host to host as there are hosts. The same on all members.
    const std::vector<int>& host_by_host() const noexcept { return host_by_host_; }
    /// This one's place there.
    int ring_rank() const noexcept { return ring_rank_; }
    /// Whether there are as many members on each host.
    bool is_even() const noexcept { return !across_.empty(); }

private:
    std::vector<int> local_, across_, host_by_host_;
    int local_rank_ = 0, cross_rank_ = 0, ring_rank_ = 0, hosts_ = 0;
};

}  // namespace guozhuang::topology
