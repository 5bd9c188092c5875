#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace guozhuang::protocol {

/// The tree along which readiness goes up and the log comes down. The ranks of each host form a
/// tree below the first of them, and these first ranks form another, so that each host but the
/// root's sends one message up and receives one down. Rank 0 is the root. In either tree the
/// children of number n are those with the numbers degree*n + 1 .. degree*n + degree, so no rank
/// has more than twice `degree`.
class Tree {
public:
    /// `host_of`: the host of each rank; empty: all are on one.
    Tree(int rank, int size, int degree, std::span<const int> host_of = {})
        : rank_(rank), parents_(static_cast<std::size_t>(size)) {
        std::map<int, std::vector<int>> hosts;
        for (int each = 0; each < size; ++each)
            hosts[host_of.empty() ? 0 : host_of[static_cast<std::size_t>(each)]].push_back(each);
        std::vector<int> first_ranks;
        for (const auto& [host, ranks] : hosts) {
            link(ranks, degree);
            first_ranks.push_back(ranks.front());
        }
        std::ranges::sort(first_ranks);
        link(first_ranks, degree);
        for (int each = 1; each < size; ++each)
            if (has_child(each)) children_.push_back(each);
    }

    bool is_root() const noexcept { return rank_ == 0; }
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return static_cast<int>(parents_.size()); }
    int parent() const noexcept { return parents_[static_cast<std::size_t>(rank_)]; }
    const std::vector<int>& children() const noexcept { return children_; }
    bool has_child(int rank) const noexcept {
        return rank > 0 && rank < size() && parents_[static_cast<std::size_t>(rank)] == rank_;
    }

    /// The ranks at and below `top`, ascending.
    std::vector<int> subtree(int top) const {
        std::vector<int> ranks{top};
        for (int each = top + 1; each < size(); ++each)  // a parent comes before its children
            if (std::ranges::binary_search(ranks, parents_[static_cast<std::size_t>(each)]))
                ranks.push_back(each);
        return ranks;
    }

private:
    void link(std::span<const int> ranks, int degree) {
        for (std::size_t each = 1; each < ranks.size(); ++each)
            parents_[static_cast<std::size_t>(ranks[each])] =
                ranks[(each - 1) / static_cast<std::size_t>(degree)];
    }

    int rank_;
    std::vector<int> parents_, children_;
};

}  // namespace guozhuang::protocol
