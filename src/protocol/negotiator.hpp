#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/codec.hpp"
#include "protocol/description.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/tree.hpp"

namespace guozhuang::protocol {

/// How ranks agree which requests all of them have submitted, and in which order to execute them.
///
/// A pure state machine: submissions and messages go in, messages and log entries come out; it
/// knows no clock, thread or transport. One per rank and process set. Readiness goes up the tree: a
/// rank reports a name to its parent once every rank of its own subtree has submitted it (or
/// joined, or shut down). What is ready everywhere the root appends to the log, which goes down the
/// tree. A name is described in full the first time (and whenever its description changes) and by
/// its id after that; descriptions are compared on the way up, so that what reaches the root is the
/// list of submission groups, normally one. Not thread-safe: the engine's lock guards it.
class Negotiator {
public:
    struct Options {
        int degree = 16;
        std::size_t fusion_bytes = 1u << 20;
        /// Beyond so many ids, those that were used longest ago are evicted.
        std::size_t max_ids = 16384;
        selection::Policy policy = {};  ///< stamped on every execute entry by the root
        GroupRanks group_ranks = {};    ///< whom errors name
    };
    struct Outgoing {
        int to = 0;
        Bytes bytes;
    };

    Negotiator(int rank, int size, const Options& options);

    /// This rank wants the request. A rank submits a name again only after the log has resolved it.
    void submit(const std::string& name, bool named, const SharedDescription& description);
    /// This rank submits nothing more. The reason goes into the errors of those who wait for it;
    /// empty for a plain shutdown.
    void shut_down(std::string_view reason);
    /// This rank is about to end, whatever the others do. It executes the log up to its quitting,
    /// which is the last entry.
    void quit(std::string_view reason);
    /// This rank submits nothing until all have joined (or shut down), and the log says so; the
    /// others go on without it. All name a join alike.
    void join(const std::string& name);
    /// A message of take_messages() of another rank. Throws Error(wire) if it is malformed.
    void receive(int from, std::span<const std::byte> message);

    /// What is to be sent, in order, one message per receiver unless it would be a long one:
    /// everything since the last call. At the root this appends what is ready.
    std::vector<Outgoing> take_messages();
    /// The log entries that have become known since the last call, in order.
    std::vector<LogEntry> take_entries() { return std::exchange(entries_, {}); }

    /// Whether the log is complete: every rank has shut down, or one has quit. What is submitted or
    /// received later has no effect.
    bool finished() const noexcept { return finished_; }

    /// Whether other ranks hear the log from this one.
    bool passes_log_on() const noexcept { return !tree_.children().empty(); }

    /// What is held at present, for tests and diagnostics: rounds under way in this rank's subtree,
    /// own requests that the log has not resolved, names that have an id, voided ids that a child
    /// may still use.
    struct Holdings {
        std::size_t rounds = 0, submissions = 0, ids = 0, retired = 0;
    };
    Holdings holdings() const noexcept {
        return {tallies_.size() + ready_.size(), submissions_.size(), id_table_.size(),
                retired_.size()};
    }

private:
    /// Beyond this size the next record begins another message, and nothing joins an entry.
    static constexpr std::size_t full_message_bytes = 1u << 20;

    /// The records a message is made of.
    enum class RecordType : std::uint8_t {
        ready = 0,      ///< up: every rank of my subtree has submitted this id
        report = 1,     ///< up: the same in full; several of them, if the ranks differ
        shut_down = 2,  ///< up: this rank submits nothing more
        entry = 3,      ///< down: the next entry of the log
        quit = 4,       ///< up: this rank is about to end
        join = 5        ///< up: this rank submits nothing until all have joined
    };
    friend constexpr RecordType last_of(RecordType) noexcept { return RecordType::join; }

    /// One round of one name: what the ranks of this rank's subtree have submitted so far.
    struct Tally {
        bool named = true;
        std::vector<SubmissionGroup> groups;
        std::size_t arrived = 0;
        std::set<int> reporting;  ///< children of which more submission groups are to come
    };
    /// What the log says about a name that has an id.
    struct IdEntry {
        std::uint32_t id = 0;
        SharedDescription description;
        std::uint64_t last_used = 0;  ///< position in the log
    };
    /// An id that the log has voided, kept while a child that has not yet applied that entry may
    /// still use it.
    struct Retired {
        std::string name;
        SharedDescription description;
        std::uint64_t position = 0;
    };

    /// For people.
    int world_rank(int group_rank) const { return options_.group_ranks.world_rank(group_rank); }
    void count(const std::string& name, bool named, const SharedDescription& description,
               std::span<const int> ranks);
    void pass_on_if_complete(const std::string& name);
    bool complete(const Tally& tally) const;
    void write_report(const std::string& name, const Tally& tally);
    void write_group(const std::string& name, const Tally& tally, const SubmissionGroup& group);
    std::vector<int> missing_from(const Tally& tally) const;
    void resolve(const std::string& name, Tally tally);
    std::string mismatch_of(const std::string& name, std::vector<SubmissionGroup> groups,
                            LogEntry& failure) const;
    std::string discard_of(const std::string& name, std::vector<SubmissionGroup> groups,
                           LogEntry& failure) const;
    std::string refusal_without(std::span<const int> joined, const Description& description) const;
    std::string shutdowns_of(std::span<const int> ranks) const;
    void shut_down(int rank, std::string_view reason);
    void quit(int rank, std::string_view reason);
    void join(int rank, const std::string& name);
    void pass_on_all_complete();
    void write_rank_record(RecordType type, int rank, std::string_view text);

    void read_record(int from, Reader& in);
    void read_ready(int child, Reader& in);
    void read_report(int child, Reader& in);
    std::pair<int, std::string> read_rank_record(int child, Reader& in);
    LogEntry read_entry(Reader& in);
    void child_applied(int child, std::uint64_t position);

    void append_due();
    void append_ready();
    void append_join();
    void append(LogEntry entry);
    void evict_oldest();
    void write_entry(const LogEntry& entry, Writer& out) const;
    void apply(LogEntry entry);
    Writer& message_to(int rank);

    Tree tree_;
    Options options_;
    std::map<int, std::vector<int>> subtrees_;  ///< of this rank and of each child
    std::unordered_map<std::string, Tally> tallies_;
    std::unordered_map<std::string, IdEntry> id_table_;
    std::unordered_map<std::uint32_t, std::string> names_;  ///< by id
    std::map<std::uint32_t, Retired> retired_;
    /// This rank's own submissions that the log has not resolved.
    std::unordered_map<std::string, SharedDescription> submissions_;
    /// Ranks of this rank's subtree that have shut down, with their reasons.
    std::map<int, std::string> shutdowns_;
    /// Ranks of this rank's subtree that have joined since the log last said that all had.
    std::set<int> joined_;
    std::string join_name_;  ///< what they call it
    /// How much of the log each child has applied, as far as this rank knows.
    std::map<int, std::uint64_t> applied_;
    /// Messages that take nothing more.
    std::vector<Outgoing> full_;
    std::map<int, Writer> outbox_;  ///< behind them
    std::vector<LogEntry> entries_;
    std::uint64_t position_ = 0;  ///< entries of the log that this rank has applied
    bool finished_ = false;

    // At the root.
    struct ReadyRequest {
        std::string name;
        bool named = true;
        SharedDescription description;
        std::vector<int> absent;  ///< ranks that have joined and not submitted it
    };
    std::vector<ReadyRequest> ready_;
    int last_to_join_ = 0;
    std::uint32_t next_id_ = 1;
};

}  // namespace guozhuang::protocol
