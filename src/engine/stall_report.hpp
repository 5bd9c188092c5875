#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/control.hpp"
#include "engine/pending.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {

/// Snapshot of what the ranks of a process set are doing. at() looks at a rank once, when it is
/// first asked about it.
class SetSnapshot {
public:
    struct RankSnapshot {
        trace::RankStatus status;
        std::vector<trace::Note::Content> waiting;  ///< operations that it lists as overdue
        /// The operation that it submitted last, if that is pending.
        std::optional<trace::Note::Content> last;
        bool is_crowded = false;  ///< more are overdue than it could list
        bool has_joined = false;
    };

    /// `rank`: this rank, in the world. All arguments must outlive this.
    SetSnapshot(const protocol::GroupRanks& group_ranks, int size, int rank, JobControl& job)
        : group_ranks_(group_ranks), size_(size), rank_(rank), job_(job) {}

    const protocol::GroupRanks& group_ranks() const noexcept { return group_ranks_; }
    int size() const noexcept { return size_; }  ///< of the process set
    int rank() const noexcept { return rank_; }
    /// A rank of the world; empty if this rank cannot see it.
    const std::optional<RankSnapshot>& at(int rank);

private:
    std::optional<RankSnapshot> look_at(int rank) const;

    const protocol::GroupRanks& group_ranks_;
    int size_, rank_;
    JobControl& job_;
    std::map<int, std::optional<RankSnapshot>> snapshots_;
};

/// An overdue operation, and the ranks of its process set that hold it up.
class StallReport {
public:
    /// `decided`: the log has resolved the operation, which is under way.
    StallReport(const Request& request, bool decided, SetSnapshot& set_snapshot);

    /// Whether this is the lowest rank that can report it.
    bool is_first() const { return waiting_.front() == set_snapshot_.rank(); }
    /// Whether some rank may hold it up.
    bool has_culprits() const { return !missing_.empty() || !unseen_.empty(); }
    /// Whether there are ranks that this rank cannot see.
    bool has_unseen() const { return !unseen_.empty(); }
    bool has_stopped() const;
    /// The first world rank that is known to hold it up; otherwise the first that cannot be seen,
    /// or this rank.
    int culprit() const;
    /// "... on ranks 0,1; rank 2 has not submitted it (pid 7, stopped; after it had submitted
    /// allreduce 'grad6')".
    std::string text(const Stalled& stalled) const;

private:
    bool is(Request::Kind kind) const { return request_.kind == kind; }
    std::string deed() const { return is(Request::Kind::closing) ? "closed" : "submitted it"; }
    bool has_submitted(const SetSnapshot::RankSnapshot& snapshot) const;
    bool waits_too(const SetSnapshot::RankSnapshot& snapshot) const;
    bool is_needed(const SetSnapshot::RankSnapshot& snapshot) const;
    std::string culprits() const;
    std::string nearest(const std::vector<trace::Note::Content>& waiting) const;

    const Request& request_;
    bool decided_;
    SetSnapshot& set_snapshot_;
    std::string name_;                             ///< as it is published
    std::vector<int> waiting_, unseen_, missing_;  ///< of the world
};

}  // namespace guozhuang::engine
