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
    /// `rank`: this rank, in the world. All arguments must outlive this.
    SetSnapshot(const protocol::GroupRanks& group_ranks, int size, int rank, JobControl& job)
        : group_ranks_(group_ranks), size_(size), rank_(rank), job_(job) {}

    const protocol::GroupRanks& group_ranks() const noexcept { return group_ranks_; }
    int size() const noexcept { return size_; }  ///< of the process set
    int rank() const noexcept { return rank_; }
    /// A rank of the world; empty if this rank cannot see it.
    const std::optional<trace::RankStatus>& at(int rank);

private:
    const protocol::GroupRanks& group_ranks_;
    int size_, rank_;
    JobControl& job_;
    std::map<int, std::optional<trace::RankStatus>> statuses_;
};

/// An overdue operation, and the ranks of its process set that hold it up.
class StallReport {
public:
    /// `decided`: the log has resolved the operation, which is under way.
    StallReport(const Stalled& stalled, bool decided, SetSnapshot& set_snapshot);

    /// False if ranks of other hosts have yet to answer: report it at the next look.
    bool is_complete() const { return is_complete_; }
    /// Whether this is the lowest rank that can report it.
    bool is_first() const { return waiting_.front() == set_snapshot_.rank(); }
    /// Whether some rank may hold it up.
    bool has_culprits() const { return !missing_.empty() || has_unseen(); }
    /// Whether there are ranks that this rank cannot see.
    bool has_unseen() const { return !unseen_.empty() || !silent_.empty(); }
    /// Whether some rank is stopped, or does not answer.
    bool has_stopped() const { return stopped().has_value(); }
    /// A world rank that is stopped, or does not answer: because of it, others may not have heard
    /// that the operation is over. Otherwise one that is missing, or cannot be seen, or this rank.
    int culprit() const;
    /// "... on ranks 0,1; rank 2 has not submitted it (pid 7, stopped; after it had submitted
    /// allreduce 'grad6')".
    std::string text() const;

private:
    bool is(Request::Kind kind) const { return request_.kind == kind; }
    std::string deed() const { return is(Request::Kind::closing) ? "closed" : "submitted it"; }
    bool has_submitted(const trace::RankStatus& status) const;
    bool has_joined(const trace::RankStatus& status) const;
    bool waits_too(const trace::RankStatus& status) const;
    bool is_needed(const trace::RankStatus& status) const;
    std::string culprits() const;
    std::optional<int> stopped() const;  ///< the first, or one that does not answer
    std::string nearest(const std::vector<trace::Note::Content>& waiting) const;

    const Stalled& stalled_;
    const Request& request_;
    bool decided_, is_complete_ = true;
    SetSnapshot& set_snapshot_;
    std::string name_;                                      ///< as it is published
    std::vector<int> waiting_, unseen_, silent_, missing_;  ///< of the world
};

}  // namespace guozhuang::engine
