#include "topology/host_grid.hpp"

#include <algorithm>

#include "topology/topology.hpp"

namespace guozhuang::topology {

HostGrid::HostGrid(std::span<const int> hosts, int rank)
    : HostGrid(hosts, all_ranks(static_cast<int>(hosts.size())), rank) {}

HostGrid::HostGrid(std::span<const int> hosts, std::span<const int> members, int rank) {
    std::vector<int> met;                // hosts, by row
    std::vector<std::vector<int>> rows;  // members
    for (const int member : members) {
        const int host = hosts[static_cast<std::size_t>(member)];
        const auto row = static_cast<std::size_t>(std::ranges::find(met, host) - met.begin());
        if (row == met.size()) {
            met.push_back(host);
            rows.emplace_back();
        }
        if (member == rank) {
            cross_rank_ = static_cast<int>(row);
            local_rank_ = static_cast<int>(rows[row].size());
        }
        rows[row].push_back(member);
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
