#include "topology/host_grid.hpp"

#include <algorithm>

#include "topology/topology.hpp"

namespace guozhuang::topology {

HostGrid::HostGrid(std::span<const int> hosts, int rank)
    : HostGrid(hosts, all_ranks(static_cast<int>(hosts.size())), rank) {}

HostGrid::HostGrid(std::span<const int> hosts, std::span<const int> ranks, int rank) {
    std::vector<int> seen;  // hosts, by row
    for (const int each : ranks) {
        const int host = hosts[static_cast<std::size_t>(each)];
        const auto row = static_cast<std::size_t>(std::ranges::find(seen, host) - seen.begin());
        if (row == seen.size()) {
            seen.push_back(host);
            rows_.emplace_back();
        }
        if (each == rank) {
            cross_rank_ = static_cast<int>(row);
            local_rank_ = static_cast<int>(rows_[row].size());
        }
        rows_[row].push_back(each);
    }
    const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    const auto [least, most] = std::ranges::minmax_element(rows_, by_size);
    columns_ = static_cast<int>(most->size() / least->size() * least->size());
    for (const auto& row : rows_) host_by_host_.insert(host_by_host_.end(), row.begin(), row.end());
    ring_rank_ = static_cast<int>(std::ranges::find(host_by_host_, rank) - host_by_host_.begin());
}

bool HostGrid::is_even() const noexcept {
    return std::ranges::all_of(rows_,
                               [&](const auto& row) { return row.size() == local().size(); });
}

std::vector<int> HostGrid::ranks_by_host() const {
    std::vector<int> ranks;
    for (const auto& row : rows_) ranks.push_back(static_cast<int>(row.size()));
    return ranks;
}

std::vector<int> HostGrid::column(int number) const {
    std::vector<int> ranks;
    for (const auto& row : rows_)
        ranks.push_back(row[static_cast<std::size_t>(number) % row.size()]);
    return ranks;
}

}  // namespace guozhuang::topology
