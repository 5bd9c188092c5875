#pragma once

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

namespace guozhuang::topology {

/// 0, 1, 2 ...: the world ranks of a job of this size.
inline std::vector<int> all_ranks(int size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
}

/// The host of each rank of the job, seen from one rank. HostGrid makes a grid of it. A value.
struct Topology {
    int rank = 0;  ///< this rank, in the world
    /// The host of each rank, the same on all ranks; hosts are numbered in the order of their first
    /// ranks.
    std::vector<int> host_of = {0};
    /// Whether this rank's machine has more ranks than cores; the same on all of its ranks.
    bool ranks_share_cores = false;
    /// How long a message between hosts and its answer take; 0 on one host, the same on all ranks.
    std::chrono::nanoseconds round_trip{0};

    int size() const noexcept { return static_cast<int>(host_of.size()); }
    int hosts() const noexcept { return 1 + std::ranges::max(host_of); }
    /// Whether a rank is on another host than this one.
    bool is_far(int peer) const noexcept {
        return host_of[static_cast<std::size_t>(peer)] != host_of[static_cast<std::size_t>(rank)];
    }
};

}  // namespace guozhuang::topology
