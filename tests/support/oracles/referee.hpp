#pragma once

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/negotiator.hpp"

namespace guozhuang::test {

/// Watches the log of every rank and knows, from submissions and shutdowns alone, what each entry
/// must be. Throws Violation at the first entry that breaks a rule of the protocol; P1 to P5 are
/// those of docs/verification.md.
class Referee {
public:
    struct Violation : std::runtime_error {
        using std::runtime_error::runtime_error;
    };

    Referee(int size, const protocol::Negotiator::Options& options)
        : options_(options), ranks_(static_cast<std::size_t>(size)) {}

    void submitted(int rank, const std::string& name, bool named,
                   const protocol::Description& description,
                   const protocol::Bytes& contribution = {}) {
        auto& round = rounds_[{name, this->round(rank, name)}];
        round.named = named;
        round.votes[rank] = description;
        round.contributions[rank] = contribution;
        at(rank).pending.insert(name);
    }

    void shut_down(int rank, const std::string& reason) { shut_down_[rank] = reason; }

    void joined(int rank) {
        submitted(rank, join, false, {.operation = OperationKind::join, .tensors = {}});
    }
    /// Whether the rank has joined, and has not seen that all have.
    bool has_joined(int rank) const { return at(rank).pending.contains(join); }

    /// The next entry of the rank's log. P3: the same as on all other ranks.
    void learnt(int rank, const protocol::LogEntry& entry) {
        auto& own = at(rank);
        if (own.position == log_.size()) {
            require(rank == 0, "a rank knows more than the root");
            judge(entry);
            log_.push_back(entry);
        }
        require(log_[own.position++] == entry, "the logs differ");
        if (entry.kind == protocol::LogEntry::Kind::evict) return;
        for (const auto& item : entry.items) {
            own.pending.erase(item.name);
            ++own.resolved[item.name];
        }
    }

    /// How many rounds of the name the rank has seen resolved.
    std::size_t round(int rank, const std::string& name) const {
        return value_or_zero(at(rank).resolved, name);
    }
    /// The names that the rank has submitted and not seen resolved.
    const std::set<std::string>& pending(int rank) const { return at(rank).pending; }
    bool has_shut_down(int rank) const { return shut_down_.contains(rank); }
    const std::vector<protocol::LogEntry>& log() const { return log_; }

    /// When no message is in flight any more. P5: every round in which all have voted, joined or
    /// shut down is over, and every rank knows it.
    void expect_quiet() const {
        for (const auto& [key, round] : rounds_) {
            if (key.second < value_or_zero(resolved_, key.first)) continue;  // as has been judged
            const bool over = std::ranges::all_of(
                absent(round), [&](int rank) { return has_shut_down(rank) || joins(rank); });
            require(!over, "'" + key.first + "' should be over");
        }
        for (const auto& rank : ranks_)
            require(rank.position == log_.size(), "a rank has not heard all");
    }

    /// When all have shut down and no message is in flight any more. P4: no request is left.
    void expect_finished() const {
        expect_quiet();
        require(!log_.empty() && log_.back().kind == protocol::LogEntry::Kind::all_shut_down,
                "the log does not end with the shutdown");
        for (const auto& rank : ranks_)
            require(rank.pending.empty(), "a request was never resolved");
    }

    /// When a rank has left and no message is in flight any more.
    void expect_left() const {
        require(!log_.empty() && log_.back().kind == protocol::LogEntry::Kind::quit,
                "the log does not end with the leaving");
        for (const auto& rank : ranks_)
            require(rank.position == log_.size(), "a rank has not heard all");
    }

    static void require(bool condition, const std::string& rule) {
        if (!condition) throw Violation(rule);
    }

private:
    static constexpr const char* join = "join";  ///< the name that all give it

    struct Round {
        bool named = true;
        std::map<int, protocol::Description> votes;
        std::map<int, protocol::Bytes> contributions;
    };
    struct Rank {
        std::size_t position = 0;
        std::map<std::string, std::size_t> resolved;
        std::set<std::string> pending;
    };

    static std::size_t value_or_zero(const std::map<std::string, std::size_t>& map,
                                     const std::string& name) {
        const auto found = map.find(name);
        return found == map.end() ? 0 : found->second;
    }
    Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

    std::vector<int> absent(const Round& round) const {
        std::vector<int> result;
        for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
            if (!round.votes.contains(rank)) result.push_back(rank);
        return result;
    }

    /// Whether the rank had joined when the log's next entry was appended.
    bool joins(int rank) const {
        const auto found = rounds_.find({join, value_or_zero(resolved_, join)});
        return found != rounds_.end() && found->second.votes.contains(rank);
    }

    /// Ranks that have neither submitted nor joined.
    std::vector<int> missing(const Round& round) const {
        auto result = absent(round);
        std::erase_if(result, [&](int rank) { return joins(rank); });
        return result;
    }

    static bool needs(const protocol::Description& description, const std::vector<int>& ranks) {
        using enum OperationKind;
        if (ranks.empty()) return false;
        return description.operation == all_to_all ||
               (description.operation == broadcast &&
                std::ranges::count(ranks, description.root) > 0);
    }

    void judge(const protocol::LogEntry& entry) {
        using Kind = protocol::LogEntry::Kind;
        require(log_.empty() ||
                    (log_.back().kind != Kind::all_shut_down && log_.back().kind != Kind::quit),
                "something follows the last entry");
        switch (entry.kind) {
            case Kind::execute: judge_execute(entry); break;
            case Kind::fail: judge_failure(entry); break;
            case Kind::evict:
                for (const auto& item : entry.items)
                    require(ids_.erase(item.name) == 1, "a name without an id is forgotten");
                return;
            case Kind::join: judge_join(entry); break;
            case Kind::all_shut_down:
                require(shut_down_.size() == ranks_.size(),
                        "the log ends before all ranks have shut down");
                require(entry.items.empty(), "the end of the log resolves something");
                break;
            case Kind::quit:
                require(entry.items.empty() && entry.ranks.size() == 1,
                        "a quit is of one rank and resolves nothing");
                judge_reason(entry, entry.ranks.front());
                break;
        }
        for (const auto& item : entry.items) ++resolved_[item.name];
    }

    /// The round of the name that the log resolves next.
    const Round& current(const std::string& name) const {
        const auto found = rounds_.find({name, value_or_zero(resolved_, name)});
        require(found != rounds_.end(),
                "'" + name + "' is resolved though nobody has submitted it");
        return found->second;
    }

    void judge_join(const protocol::LogEntry& entry) {
        require(entry.items.size() == 1 && entry.items.front().name == join, "a join is one");
        const auto& round = current(join);
        const auto absentees = absent(round);
        for (const int rank : absentees) judge_reason(entry, rank);
        if (absentees.empty())
            require(entry.text.empty() && entry.ranks.size() == 1, "a join of all names the last");
        else
            require(entry.code == ErrorCode::departed && entry.ranks == absentees,
                    "a join fails because of the wrong ranks: " + entry.text);
    }

    /// Returns the contributions that the entry must bring: those of all ranks, if they are on
    /// several hosts and each has one.
    protocol::Bytes contributions(const Round& round) const {
        protocol::Bytes all;
        const auto& hosts = options_.host_of;
        const bool lack =
            !absent(round).empty() || std::ranges::count(hosts, hosts.empty() ? 0 : hosts[0]) ==
                                          static_cast<std::ptrdiff_t>(hosts.size());
        for (const auto& [rank, bytes] : round.contributions) {
            if (lack || bytes.empty()) return {};
            all.insert(all.end(), bytes.begin(), bytes.end());
        }
        return all;
    }

    /// P2: all ranks have submitted the same, or joined. Only requests that may share a bundle do.
    void judge_execute(const protocol::LogEntry& entry) {
        std::size_t bytes = 0;
        for (const auto& item : entry.items) {
            const auto& round = current(item.name);
            require(missing(round).empty(),
                    "'" + item.name.text() + "' is executed though not all have submitted it");
            require(absent(round) == entry.absent,
                    "'" + item.name.text() + "' is executed with the wrong ranks standing in");
            const auto& first = round.votes.begin()->second;
            require(!needs(first, entry.absent),
                    "'" + item.name.text() + "' is executed without a rank that it needs");
            require(entry.absent.empty() ? !item.description
                                         : item.description && *item.description == first,
                    "'" + item.name.text() + "' is described wrongly");
            require(std::ranges::all_of(round.votes,
                                        [&](const auto& vote) { return vote.second == first; }),
                    "'" + item.name.text() + "' is executed though the ranks disagree");
            require((item.id != 0) == round.named, "named requests have an id, others none");
            if (round.named) judge_id(item);
            require(entry.contributions == contributions(round),
                    "'" + item.name.text() + "' comes with the wrong contributions");
            bytes += bytes_of(first);
            require(&item == &entry.items.front() ||
                        may_share(first, current(entry.items.front().name).votes.begin()->second),
                    "'" + item.name.text() + "' is fused with what it cannot be fused with");
        }
        require(!entry.items.empty(), "an entry executes nothing");
        require(entry.items.size() == 1 || bytes <= options_.fusion_bytes,
                "a bundle is larger than the threshold");
        require(entry.policy == options_.policy, "the policy is not the root's");
    }

    void judge_id(const protocol::Item& item) {
        const bool fresh =
            std::ranges::none_of(ids_, [&](const auto& known) { return known.second == item.id; });
        const auto [known, inserted] = ids_.emplace(item.name.text(), item.id);
        require(known->second == item.id && (!inserted || fresh),
                "'" + item.name.text() + "' changes its id or takes another's");
    }

    static std::size_t bytes_of(const protocol::Description& description) {
        std::size_t bytes = 0;
        for (const auto& tensor : description.tensors)
            bytes += count_of(tensor.shape) * size_of(tensor.dtype);
        return bytes;
    }

    static bool may_share(const protocol::Description& a, const protocol::Description& b) {
        using enum OperationKind;
        return (a.operation == allreduce || a.operation == broadcast) &&
               a.operation == b.operation && a.op == b.op && a.root == b.root &&
               a.prescale == b.prescale && a.postscale == b.postscale && a.device == b.device &&
               !a.group && !b.group && a.tensors[0].dtype == b.tensors[0].dtype;
    }

    void judge_failure(const protocol::LogEntry& entry) {
        require(entry.items.size() == 1, "a failure is about one request");
        const auto& name = entry.items.front().name.text();
        const auto& round = current(name);
        if (const auto culprits = missing(round); !culprits.empty()) {
            require(entry.code == ErrorCode::departed && entry.ranks == culprits,
                    "'" + name + "' fails because of the wrong ranks: " + entry.text);
            for (const int rank : culprits) judge_reason(entry, rank);
            return;
        }
        std::vector<protocol::SubmissionGroup> groups;
        for (const auto& [rank, vote] : round.votes) {
            const auto description = protocol::share(vote);
            auto group = std::ranges::find_if(groups, [&](const auto& each) {
                return protocol::are_same(each.description, description);
            });
            if (group == groups.end()) group = groups.insert(group, {description, {}});
            group->ranks.push_back(rank);
        }
        if (groups.size() == 1) {
            require(needs(round.votes.begin()->second, absent(round)),
                    "'" + name + "' fails though all have submitted the same: " + entry.text);
            require(entry.code == ErrorCode::departed && entry.ranks == absent(round) &&
                        entry.text.find("joined") != std::string::npos,
                    "'" + name + "' fails for the wrong reason: " + entry.text);
            return;
        }
        std::string tensor;
        require(entry.code == ErrorCode::mismatch &&
                    entry.text == protocol::describe_mismatch(name, groups, tensor) &&
                    entry.tensor == tensor,
                "'" + name + "' fails with the wrong text: " + entry.text);
    }

    /// The entry speaks of the shutdown of a rank that has shut down, and says why.
    void judge_reason(const protocol::LogEntry& entry, int rank) const {
        require(has_shut_down(rank),
                "rank " + std::to_string(rank) + " has not shut down: " + entry.text);
        require(entry.text.find(shut_down_.at(rank)) != std::string::npos,
                "the reason of a shutdown is lost: " + entry.text);
    }

    protocol::Negotiator::Options options_;
    std::vector<Rank> ranks_;
    std::map<int, std::string> shut_down_;
    std::map<std::pair<std::string, std::size_t>, Round> rounds_;
    /// How many rounds of each name the log has resolved.
    std::map<std::string, std::size_t> resolved_;
    std::map<std::string, std::uint32_t> ids_;
    std::vector<protocol::LogEntry> log_;
};

}  // namespace guozhuang::test
