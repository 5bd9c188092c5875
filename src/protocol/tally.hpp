#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <span>
#include <vector>

#include "protocol/codec.hpp"
#include "protocol/description.hpp"

namespace guozhuang::protocol {

/// One round of one name: what the ranks of a subtree have submitted so far.
struct Tally {
    std::vector<SubmissionGroup> groups = {};
    std::size_t arrived = 0;       ///< ranks in all groups
    std::set<int> reporting = {};  ///< children that will report more submission groups
    /// The tensors of the ranks that have sent theirs along, by rank.
    Bytes contributions = {};
    std::size_t contributed = 0;  ///< how many have

    bool is_under_way() const noexcept { return arrived > 0; }
    /// Clears it for the next round. Reuses the memory of the first group, a list of ranks.
    void reset() noexcept {
        if (groups.size() > 1) groups.erase(groups.begin() + 1, groups.end());
        if (!groups.empty()) {
            groups.front().description.reset();
            groups.front().ranks.clear();
        }
        arrived = 0;
        reporting.clear();
        contributions = {};  // every name has a tally: it must not keep the memory
        contributed = 0;
    }

    /// Adds the ranks to the group that has submitted the same description.
    void add(const SharedDescription& description, std::span<const int> ranks) {
        auto group = std::ranges::find_if(groups, [&](const SubmissionGroup& each) {
            return each.ranks.empty() || are_same(each.description, description);
        });
        if (group == groups.end()) group = groups.emplace(group);
        if (group->ranks.empty()) group->description = description;
        group->ranks.insert(group->ranks.end(), ranks.begin(), ranks.end());
        arrived += ranks.size();
    }

    /// Adds the contributions of ranks: as many bytes of each, in their order. `all` (ascending)
    /// lists all ranks that may contribute. Ignores contributions of another size than the first.
    void contribute(std::span<const int> all, std::span<const int> ranks,
                    std::span<const std::byte> bytes) {
        const auto each = bytes.size() / ranks.size();
        if (contributed == 0) contributions.resize(each * all.size());
        if (contributions.size() != each * all.size()) return;
        for (const int rank : ranks) {
            const auto index = std::ranges::lower_bound(all, rank) - all.begin();
            std::ranges::copy(bytes.first(each),
                              contributions.begin() + index * std::ptrdiff_t(each));
            bytes = bytes.subspan(each);
        }
        contributed += ranks.size();
    }

    /// Returns the ranks that have not submitted it, ascending; `ranks` (ascending) lists all that
    /// may.
    std::vector<int> missing_from(std::span<const int> ranks) const {
        std::vector<int> present, missing;
        if (arrived == ranks.size()) return missing;
        for (const auto& group : groups)
            present.insert(present.end(), group.ranks.begin(), group.ranks.end());
        std::ranges::sort(present);
        std::ranges::set_difference(ranks, present, std::back_inserter(missing));
        return missing;
    }
};

}  // namespace guozhuang::protocol
