#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/control.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {

/// The ranks of a process set at one look: each is asked once what it is doing, when that matters
/// first.
class SetSnapshot {
public:
    struct RankSnapshot {
        trace::RankStatus status;
        std::vector<trace::Note::Content> waiting;  ///< what it has published that it waits for
        /// what it has submitted last, if that is pending
        std::optional<trace::Note::Content> last;
        bool is_crowded = false;  ///< it may wait for more
        bool has_joined = false;
    };

    /// `rank`: this one's in the world. All must outlive this.
    SetSnapshot(const protocol::GroupRanks& group_ranks, int size, int rank, JobControl& job)
        : group_ranks_(group_ranks), size_(size), rank_(rank), job_(job) {}

    const protocol::GroupRanks& group_ranks() const noexcept { return group_ranks_; }
    int size() const noexcept { return size_; }  ///< of the process set
    int rank() const noexcept { return rank_; }
    /// A rank of the world; empty where it cannot be seen.
    const std::optional<RankSnapshot>& at(int rank);

private:
    std::optional<RankSnapshot> look_at(int rank) const;

    const protocol::GroupRanks& group_ranks_;
    int size_, rank_;
    JobControl& job_;
    std::map<int, std::optional<RankSnapshot>> snapshots_;
};

/// An operation that does not come forward, and what the ranks of its process set have to do with
/// that.
class StallReport {
public:
    /// `decided`: the log has resolved it, and it is under way.
    StallReport(const Request& request, bool decided, SetSnapshot& set_snapshot);

    /// Whether no rank with a lower number can say it.
    bool is_first() const { return waiting_.front() == set_snapshot_.rank(); }
    /// Whether some rank can be at fault.
    bool has_culprits() const { return !missing_.empty() || !unseen_.empty(); }
    /// Whether there are ranks of which nobody can see from here what they do.
    bool has_unseen() const { return !unseen_.empty(); }
    bool has_stopped() const;
    /// The rank of the world that is at fault, or the first of them, as far as that can be seen.
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
