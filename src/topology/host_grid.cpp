#include "topology/host_grid.hpp"

#include <algorithm>

#include "topology/topology.hpp"

namespace guozhuang::topology {

HostGrid::HostGrid(std::span<const int> hosts, int rank)
    : HostGrid(hosts, all_ranks(static_cast<int>(hosts.size())), rank) {}

HostGrid::HostGrid(std::span<const int> hosts, std::span<const int> ranks, int rank) {
    std::vector<int> seen;               // hosts, by row
    std::vector<std::vector<int>> rows;  // ranks
    for (const int each : ranks) {
        const int host = hosts[static_cast<std::size_t>(each)];
        const auto row = static_cast<std::size_t>(std::ranges::find(seen, host) - seen.begin());
        if (row == seen.size()) {
            seen.push_back(host);
            rows.emplace_back();
        }
        if (each == rank) {
            cross_rank_ = static_cast<int>(row);
            local_rank_ = static_cast<int>(rows[row].size());
        }
        rows[row].push_back(each);
    }
    hosts_ = static_cast<int>(rows.size());
    local_ = rows[static_cast<std::size_t>(cross_rank_)];
    for (const auto& row : rows) host_by_host_.insert(host_by_host_.end(), row.begin(), row.end());
    ring_rank_ = static_cast<int>(std::ranges::find(host_by_host_, rank) - host_by_host_.begin());
    if (std::ranges::any_of(rows, [&](const auto& row) { return row.size() != local_.size(); }))
        return;
    for (const auto& row : rows) across_.push_back(row[static_cast<std::size_t>(local_rank_)]);
}

}  // namespace guozhuang::topology
