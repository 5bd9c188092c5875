#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace guozhuang::topology {

/// The ranks of a group as a grid, seen from one of them: a row is a host, a column has a rank of
/// each host. Hosts are in the order of their first ranks, the ranks of a host in the order of the
/// group. If hosts have different numbers of ranks, there are as many columns as the largest has,
/// down to a multiple of what the smallest has, so that all ranks of the smallest are in as many
/// columns. A host with fewer ranks than columns counts around; one with more has ranks that are in
/// no column. A value; pure.
class HostGrid {
public:
    /// `hosts`: the host of each world rank. `ranks`: world ranks by group rank. `rank`: the world
    /// rank from which the grid is seen, one of the group.
    HostGrid(std::span<const int> hosts, std::span<const int> ranks, int rank);
    /// The group of all ranks.
    HostGrid(std::span<const int> hosts, int rank);

    /// World ranks of the group's ranks on this rank's host, itself included.
    const std::vector<int>& local() const noexcept {
        return rows_[static_cast<std::size_t>(cross_rank_)];
    }
    int local_rank() const noexcept { return local_rank_; }

    int columns() const noexcept { return columns_; }
    /// The world ranks of a column, by host: those with this local rank, modulo the host's ranks.
    std::vector<int> column(int number) const;
    /// The number of this rank's host among the group's hosts; also its rank in its columns.
    int cross_rank() const noexcept { return cross_rank_; }
    int hosts() const noexcept { return static_cast<int>(rows_.size()); }
    /// All world ranks, host after host: a ring in this order has as few hops between hosts as
    /// there are hosts. The same on all ranks.
    const std::vector<int>& host_by_host() const noexcept { return host_by_host_; }
    /// How many ranks are on each host.
    std::vector<int> ranks_by_host() const;
    /// This rank's number in host_by_host().
    int ring_rank() const noexcept { return ring_rank_; }
    /// Whether all hosts have the same number of ranks.
    bool is_even() const noexcept;

private:
    std::vector<std::vector<int>> rows_;  ///< world ranks
    std::vector<int> host_by_host_;
    int local_rank_ = 0, cross_rank_ = 0, ring_rank_ = 0, columns_ = 0;
};

}  // namespace guozhuang::topology
