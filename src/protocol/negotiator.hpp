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
#include "protocol/log_entry.hpp"
#include "protocol/members.hpp"
#include "protocol/tree.hpp"

namespace guozhuang::protocol {

/// How ranks agree which requests all of them have submitted, and in which order to execute them.
///
/// A pure state machine: submissions and messages go in, messages and log entries come out; it
/// knows no clock, thread or transport. One per rank and process set. Readiness goes up the tree: a
/// rank reports a name to its parent once every rank of its own subtree has submitted it (or
/// joined, or departed). What is ready everywhere the root appends to the log, which goes down the
/// tree. A name is described in full the first time (and whenever its description changes) and by
/// its id after that; descriptions are compared on the way up, so that what reaches the root is the
/// list of factions, normally one. Not thread-safe: the engine's lock guards it.
class Negotiator {
public:
    struct Settings {
        int degree = 16;
        std::size_t fusion_bytes = 1u << 20;
        /// Beyond so many ids, those that were used longest ago are forgotten.
        std::size_t max_ids = 16384;
        Policy policy = {};    ///< stamped on every execute entry by the root
        Members members = {};  ///< whom errors name
    };
    struct Outgoing {
        int to = 0;
        Bytes bytes;
    };

    Negotiator(int rank, int size, const Settings& settings);

    /// This rank wants the request. A rank submits a name again only after the log has resolved it.
    void submit(const std::string& name, bool named, const SharedDescription& description);
    /// This rank submits nothing more. The reason goes into the errors of those who wait for it;
    /// empty for a plain shutdown.
    void depart(std::string_view reason);
    /// This rank is about to end, whatever the others do. It executes the log up to its leaving,
    /// which is the last entry.
    void leave(std::string_view reason);
    /// This rank submits nothing until all have joined (or departed), and the log says so; the
    /// others go on without it. All name a join alike.
    void join(const std::string& name);
    /// A message of take_messages() of another rank. Throws Error(wire) if it is malformed.
    void receive(int from, std::span<const std::byte> message);

    /// What is to be sent, in order, one message per receiver unless it would be a long one:
    /// everything since the last call. At the root this appends what is ready.
    std::vector<Outgoing> take_messages();
    /// The log entries that have become known since the last call, in order.
    std::vector<LogEntry> take_entries() { return std::exchange(entries_, {}); }

    /// Whether the log is complete: every rank has departed, or one has left. What is submitted or
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
        return {ballots_.size() + ready_.size(), submissions_.size(), records_.size(),
                retired_.size()};
    }

private:
    /// Beyond this size the next part begins another message, and nothing joins an entry.
    static constexpr std::size_t full_message_bytes = 1u << 20;

    /// The parts a message is made of.
    enum class Part : std::uint8_t {
        ready,      ///< up: every rank of my subtree has submitted this id
        report,     ///< up: the same in full; several of them, if the ranks differ
        departure,  ///< up: this rank submits nothing more
        entry,      ///< down: the next entry of the log
        leaving,    ///< up: this rank is about to end
        joining     ///< up: this rank submits nothing until all have joined
    };

    /// One round of one name: what the ranks of this rank's subtree have submitted so far.
    struct Ballot {
        bool named = true;
        std::vector<Faction> factions;
        std::size_t arrived = 0;
        std::set<int> reporting;  ///< children of which more factions are to come
    };
    /// What the log says about a name that has an id.
    struct Record {
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
    int world_rank(int position) const { return settings_.members.world_rank(position); }
    void count(const std::string& name, bool named, const SharedDescription& description,
               std::span<const int> ranks);
    void settle(const std::string& name);
    bool complete(const Ballot& ballot) const;
    void write_report(const std::string& name, const Ballot& ballot);
    void write_faction(const std::string& name, const Ballot& ballot, const Faction& faction);
    std::vector<int> missing_from(const Ballot& ballot) const;
    void resolve(const std::string& name, Ballot ballot);
    std::string mismatch_of(const std::string& name, std::vector<Faction> factions,
                            LogEntry& failure) const;
    std::string discard_of(const std::string& name, std::vector<Faction> factions,
                           LogEntry& failure) const;
    std::string refusal_without(std::span<const int> joined, const Description& description) const;
    std::string departures_of(std::span<const int> ranks) const;
    void depart(int rank, std::string_view reason);
    void leave(int rank, std::string_view reason);
    void join(int rank, const std::string& name);
    void settle_all();
    void write_word(Part part, int rank, std::string_view text);

    void read_part(int from, Reader& in);
    void read_ready(int child, Reader& in);
    void read_report(int child, Reader& in);
    std::pair<int, std::string> read_word(int child, Reader& in);
    LogEntry read_entry(Reader& in);
    void child_applied(int child, std::uint64_t position);

    void append_due();
    void append_ready();
    void append_join();
    void append(LogEntry entry);
    void forget_oldest();
    void write_entry(const LogEntry& entry, Writer& out) const;
    void apply(LogEntry entry);
    Writer& message_to(int rank);

    Tree tree_;
    Settings settings_;
    std::map<int, std::vector<int>> subtrees_;  ///< of this rank and of each child
    std::unordered_map<std::string, Ballot> ballots_;
    std::unordered_map<std::string, Record> records_;
    std::unordered_map<std::uint32_t, std::string> names_;  ///< by id
    std::map<std::uint32_t, Retired> retired_;
    /// This rank's own submissions that the log has not resolved.
    std::unordered_map<std::string, SharedDescription> submissions_;
    /// Ranks of this rank's subtree that have departed, with their reasons.
    std::map<int, std::string> departed_;
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
