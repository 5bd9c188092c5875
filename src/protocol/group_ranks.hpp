#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace guozhuang::protocol {

/// The ranks of a process set: world ranks by group rank. The engine uses group ranks; texts for
/// users name world ranks. By default the world, where both are the same.
class GroupRanks {
public:
    GroupRanks() = default;
    /// Ascending, at least one.
    explicit GroupRanks(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

    bool are_the_world() const noexcept { return ranks_.empty(); }
    int world_rank(int group_rank) const {
        return are_the_world() ? group_rank : ranks_.at(static_cast<std::size_t>(group_rank));
    }
    std::vector<int> world_ranks(std::span<const int> group_ranks) const {
        std::vector<int> ranks;
        for (const int group_rank : group_ranks) ranks.push_back(world_rank(group_rank));
        return ranks;
    }
    /// Empty if the rank is not in the set.
    std::optional<int> group_rank_of(int world_rank) const {
        if (are_the_world()) return world_rank;
        const auto found = std::ranges::lower_bound(ranks_, world_rank);
        if (found == ranks_.end() || *found != world_rank) return std::nullopt;
        return static_cast<int>(found - ranks_.begin());
    }
    /// "the world", "process set 0,2".
    std::string name() const {
        return are_the_world() ? "the world"
                               : fmt::format("process set {}", fmt::join(ranks_, ","));
    }
    /// "rank 2 has shut down (why)", "rank 2 has left process set 0,2".
    std::string shutdown_text(int group_rank, std::string_view reason) const {
        return fmt::format("rank {} has {}{}", world_rank(group_rank),
                           are_the_world() ? "shut down" : "left " + name(),
                           reason.empty() ? "" : fmt::format(" ({})", reason));
    }

private:
    std::vector<int> ranks_;
};

/// The ranks of an error, with the first cause in front. `culprit`: -1 if these ranks are the cause
/// themselves.
inline std::vector<int> ranks_led_by(int culprit, std::vector<int> ranks) {
    std::erase(ranks, culprit);
    if (culprit >= 0) ranks.insert(ranks.begin(), culprit);
    return ranks;
}

}  // namespace guozhuang::protocol
