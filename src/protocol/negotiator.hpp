#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/attendance.hpp"
#include "protocol/codec.hpp"
#include "protocol/description.hpp"
#include "protocol/fusion.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/name_table.hpp"
#include "protocol/outbox.hpp"
#include "protocol/record.hpp"
#include "protocol/tree.hpp"

namespace guozhuang::protocol {

/// How ranks agree which requests all of them have submitted, and in which order to execute them.
///
/// A pure state machine: submissions and messages go in, messages and log entries come out; it
/// knows no clock, thread or transport. One per rank and process set. Readiness goes up the tree: a
/// rank reports a name to its parent once every rank of its own subtree has submitted it (or
/// joined, or shut down). The root appends requests that are ready everywhere to the log, which
/// goes down the tree. A name is described in full the first time (and whenever its description
/// changes) and by its id after that; ranks compare descriptions on the way up, so that the root
/// receives a list of submission groups, normally one. Between hosts a small tensor may travel
/// with its request, and all ranks' tensors come back in the log. The engine's lock guards it.
class Negotiator {
public:
    struct Options {
        int degree = 16;
        /// This many bytes of tensors may share an entry.
        std::size_t fusion_bytes = std::numeric_limits<std::size_t>::max();
        /// Beyond this many ids, those that were used longest ago are evicted.
        std::size_t max_ids = 16384;
        selection::Policy policy = {};  ///< stamped on every execute entry by the root
        GroupRanks group_ranks = {};    ///< whom errors name
        std::vector<int> host_of = {};  ///< of each group rank; empty: all are on one host
    };

    Negotiator(int rank, int size, const Options& options);

    /// This rank wants the request. A rank submits a name again only after the log has resolved it.
    /// `contribution`: the tensor, if it may travel with the request; a large one does not.
    void submit(const Name& name, bool named, const SharedDescription& description,
                std::shared_ptr<Submitter> submitter = {},
                std::span<const std::byte> contribution = {});
    /// This rank submits nothing more. The reason goes into the errors of those who wait for it;
    /// empty for a plain shutdown.
    void shut_down(std::string_view reason, int culprit = -1);
    /// This rank is about to end, whatever the others do. It executes the log up to its quitting,
    /// which is the last entry.
    void quit(std::string_view reason, int culprit = -1);
    /// This rank submits nothing until the log says that all have joined (or shut down); the others
    /// go on without it. All ranks give a join the same name.
    void join(const Name& name, std::shared_ptr<Submitter> submitter = {});
    /// A message of take_messages() of another rank. Throws Error(wire) if it is malformed.
    void receive(int from, std::span<const std::byte> message);

    /// Returns the messages that have become due since the last call, in order; one per receiver
    /// unless it would be long. The root first appends what is due to the log.
    std::vector<Outgoing> take_messages();
    /// Moves the log entries that have become known since the last call, in order, into `entries`.
    /// Each item holds its submitter on this rank. Drops the former contents of `entries`, and
    /// reuses its memory.
    void take_entries(std::vector<LogEntry>& entries) {
        entries.clear();
        entries.swap(entries_);
    }
    /// Whether this rank has submitted the name, and the log has not resolved it.
    bool awaits(const Name& name) const;
    /// Forgets this rank's submissions that the log has not resolved, and returns their submitters.
    std::vector<std::shared_ptr<Submitter>> take_unresolved();
    /// Forgets what this rank has submitted, and the entries that have not been taken.
    void forget_submissions() noexcept;

    /// Whether the log is complete: every rank has shut down, or one has quit. Later submissions,
    /// and records from children, have no effect. For tests.
    bool finished() const noexcept { return finished_; }

    /// Whether other ranks hear the log from this one.
    bool passes_log_on() const noexcept { return !tree_.children().empty(); }

    /// Sizes of the present state, for tests and diagnostics: rounds under way in this rank's
    /// subtree, this rank's submissions that the log has not resolved, names that have an id,
    /// evicted ids that a child may still send.
    struct Holdings {
        std::size_t rounds = 0, submissions = 0, ids = 0, retired = 0;
    };
    Holdings holdings() const;

private:
    // Rounds: what ranks of the subtree have submitted.
    void count(KnownName& known, bool named, const SharedDescription& description,
               std::span<const int> ranks, std::span<const std::byte> contributions);
    bool is_complete(const Tally& tally) const;
    void pass_on_if_complete(KnownName& known);
    void pass_on_all_complete();
    void report(const KnownName& known);
    void resolve(const KnownName& known);
    void shut_down(const RankRecord& shutdown);
    void quit(const RankRecord& quitting);
    void join(const RankRecord& joining);

    // Received records.
    void receive_record(int from, Reader& in);
    void receive_ready(int child, Reader& in);
    void receive_report(int child, Reader& in);
    RankRecord receive_rank_record(int child, Reader& in);
    void receive_entry(Reader& in);
    void check_is_below(int child, std::span<const int> ranks) const;

    // The log: at the root what is due is appended; every rank applies it.
    void append_due();
    void append_ready();
    std::uint32_t id_for(const ReadyRequest& request);
    void append(LogEntry&& entry);
    void pass_down(const LogEntry& entry);
    void apply(LogEntry&& entry);
    void apply_execution(LogEntry& entry);
    static std::optional<KnownName::Submission> take_submission(KnownName& known, Item& item);

    /// The ranks whose submissions this one collects, itself first.
    const std::vector<int>& subtree() const { return subtrees_.at(tree_.rank()); }
    int world_rank(int group_rank) const { return options_.group_ranks.world_rank(group_rank); }
    template <class Write>
    void tell(int rank, const Write& write) {
        outbox_.add(rank, position_, write);
    }
    void tell_parent(RecordType type, const RankRecord& record);

    Tree tree_;
    Options options_;
    std::size_t most_contributed_;              ///< bytes of a tensor that travels with its request
    std::map<int, std::vector<int>> subtrees_;  ///< of this rank and of each child
    NameTable names_;
    std::vector<ReadyRequest> ready_;  ///< at the root: requests to append
    Attendance attendance_;            ///< of this rank's subtree
    Outbox outbox_;
    std::vector<LogEntry> entries_;  ///< not yet taken
    std::uint64_t position_ = 0;     ///< entries of the log that this rank has applied
    bool finished_ = false;
};

}  // namespace guozhuang::protocol
