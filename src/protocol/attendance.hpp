#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"

namespace guozhuang::protocol {

/// The ranks of a subtree that nobody needs to wait for: those that have shut down, with their
/// reasons, and those that have joined since the log last said that all ranks had joined.
class Attendance {
public:
    /// `ranks`: the subtree, ascending. `group_ranks`: whom texts name.
    Attendance(std::vector<int> ranks, GroupRanks group_ranks)
        : ranks_(std::move(ranks)), group_ranks_(std::move(group_ranks)) {}

    /// False if the rank had shut down before. `culprit`: the world rank that is the cause; -1: the
    /// rank itself.
    bool shut_down(int rank, std::string_view reason, int culprit = -1);
    /// False if the rank had joined before. Throws Error(wire) if others gave the join another
    /// name.
    bool join(int rank, const std::string& name);
    /// The log says that all ranks have joined.
    void end_join() noexcept { joined_.clear(); }

    bool has_joined(int rank) const { return joined_.contains(rank); }
    bool have_all_shut_down() const noexcept { return shutdowns_.size() == ranks_.size(); }
    /// Whether each of these ranks has shut down or joined.
    bool accounts_for(std::span<const int> missing) const;
    /// An upper bound on the ranks that have shut down or joined; a rank that has done both counts
    /// twice.
    std::size_t most_absent() const noexcept { return shutdowns_.size() + joined_.size(); }

    /// The entry that ends the join, if some have joined and all others have joined or shut down.
    std::optional<LogEntry> join_entry() const;
    /// "rank 2 has shut down (why), rank 3 has shut down". Throws Error(wire) if one of the ranks
    /// has not.
    std::string shutdowns_text(std::span<const int> ranks) const;
    /// The world rank that the first of these ranks to name one gives as its cause; -1 if none
    /// does.
    int first_cause_of(std::span<const int> ranks) const;

private:
    struct Shutdown {
        std::string reason;
        int culprit = -1;
    };

    std::vector<int> ranks_;
    GroupRanks group_ranks_;
    std::map<int, Shutdown> shutdowns_;  ///< by rank
    std::set<int> joined_;
    std::string join_name_;  ///< of the join, the same on all ranks
    int last_to_join_ = 0;
};

}  // namespace guozhuang::protocol
