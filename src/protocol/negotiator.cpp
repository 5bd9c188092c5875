#include "protocol/negotiator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <limits>
#include <ranges>
#include <tuple>

#include "base/error_text.hpp"

namespace guozhuang::protocol {
namespace {

constexpr std::size_t max_reason_bytes = 4096;  // of a departure: longer ones are cut

std::string departure_text(const Members& members, int rank, std::string_view reason) {
    return fmt::format("rank {} has {}{}", members.world_rank(rank),
                       members.are_the_world() ? "shut down" : "left " + members.name(),
                       reason.empty() ? "" : fmt::format(" ({})", reason));
}

}  // namespace

Negotiator::Negotiator(int rank, int size, const Settings& settings)
    : tree_(rank, size, settings.degree), settings_(settings) {
    subtrees_[rank] = tree_.subtree(rank);
    for (const int child : tree_.children()) {
        subtrees_[child] = tree_.subtree(child);
        applied_[child] = 0;
    }
}

void Negotiator::submit(const std::string& name, bool named, const SharedDescription& description) {
    submissions_[name] = description;
    if (finished_) return;
    const int self = tree_.rank();
    count(name, named, description, std::span(&self, 1));
    settle(name);
}

void Negotiator::depart(std::string_view reason) {
    depart(tree_.rank(), reason.substr(0, max_reason_bytes));
}

void Negotiator::leave(std::string_view reason) {
    leave(tree_.rank(), reason.substr(0, max_reason_bytes));
}

void Negotiator::join(const std::string& name) {
    submissions_[name] = {};
    join(tree_.rank(), name);
}

/// Adds the ranks' submission to the ballot, to the faction that has submitted the same.
void Negotiator::count(const std::string& name, bool named, const SharedDescription& description,
                       std::span<const int> ranks) {
    auto& ballot = ballots_[name];
    ballot.named = named;
    ballot.arrived += ranks.size();
    if (ballot.arrived > subtrees_.at(tree_.rank()).size())
        throw Error(ErrorCode::wire,
                    fmt::format("more ranks have submitted '{}' than there are", name));
    auto faction = std::ranges::find_if(
        ballot.factions, [&](const Faction& f) { return are_same(f.description, description); });
    if (faction == ballot.factions.end())
        faction = ballot.factions.insert(faction, {description, {}});
    faction->ranks.insert(faction->ranks.end(), ranks.begin(), ranks.end());
}

/// If every rank of the subtree has submitted, joined or departed, the ballot is over: pass it on.
void Negotiator::settle(const std::string& name) {
    const auto found = ballots_.find(name);
    if (found == ballots_.end() || !complete(found->second)) return;
    auto ballot = std::move(found->second);
    ballots_.erase(found);
    for (auto& faction : ballot.factions) std::sort(faction.ranks.begin(), faction.ranks.end());
    if (tree_.is_root())
        resolve(name, std::move(ballot));
    else
        write_report(name, ballot);
}

/// Ascending: the ranks of the subtree that have not submitted it.
std::vector<int> Negotiator::missing_from(const Ballot& ballot) const {
    std::vector<int> arrived, missing;
    for (const auto& faction : ballot.factions)
        arrived.insert(arrived.end(), faction.ranks.begin(), faction.ranks.end());
    std::ranges::sort(arrived);
    std::ranges::set_difference(subtrees_.at(tree_.rank()), arrived, std::back_inserter(missing));
    return missing;
}

bool Negotiator::complete(const Ballot& ballot) const {
    const auto whole = subtrees_.at(tree_.rank()).size();
    if (!ballot.reporting.empty() || ballot.arrived + departed_.size() + joined_.size() < whole)
        return false;
    return ballot.arrived == whole || std::ranges::all_of(missing_from(ballot), [&](int rank) {
               return departed_.contains(rank) || joined_.contains(rank);
           });
}

void Negotiator::write_report(const std::string& name, const Ballot& ballot) {
    const auto whole = subtrees_.at(tree_.rank()).size();
    const auto record = records_.find(name);
    const auto& first = ballot.factions.front();
    if (record != records_.end() && first.ranks.size() == whole &&
        are_same(first.description, record->second.description)) {
        auto& out = message_to(tree_.parent());
        out.enumerator(Part::ready);
        out.number(record->second.id);
        out.fixed(first.description->fingerprint);
        return;
    }
    for (const auto& faction : ballot.factions) write_faction(name, ballot, faction);
}

/// A part of its own, since one message may not hold the longest descriptions of all.
void Negotiator::write_faction(const std::string& name, const Ballot& ballot,
                               const Faction& faction) {
    auto& out = message_to(tree_.parent());
    out.enumerator(Part::report);
    out.string(name);
    out.number(ballot.named ? 1 : 0);
    out.number(&faction == &ballot.factions.back() ? 0 : 1);
    out.bytes(faction.description->bytes);
    const bool everybody = faction.ranks.size() == subtrees_.at(tree_.rank()).size();
    out.ranks(everybody ? std::vector<int>{} : faction.ranks);
}

/// At the root: all ranks have submitted, joined or departed, so the request is executed or fails,
/// on all of them.
void Negotiator::resolve(const std::string& name, Ballot ballot) {
    LogEntry failure;
    failure.kind = LogEntry::Kind::fail;
    failure.items = {{name, records_.contains(name) ? records_.at(name).id : 0}};
    failure.tensor = name;
    const auto description = ballot.factions.front().description;
    failure.operation = protocol::name_of(description->operation);
    auto missing = missing_from(ballot);
    std::ranges::copy_if(missing, std::back_inserter(failure.ranks),
                         [&](int rank) { return !joined_.contains(rank); });
    if (!failure.ranks.empty()) {
        failure.code = ErrorCode::departed;
        failure.text = fmt::format("{}; {} '{}' waits for it", departures_of(failure.ranks),
                                   failure.operation, name);
    } else if (auto discard = discard_of(name, ballot.factions, failure); !discard.empty()) {
        failure.code = ErrorCode::discarded;
        failure.text = std::move(discard);
    } else if (ballot.factions.size() > 1) {
        failure.code = ErrorCode::mismatch;
        failure.text = mismatch_of(name, std::move(ballot.factions), failure);
    } else if (auto problem = refusal_without(missing, *description); !problem.empty()) {
        failure.code = ErrorCode::departed;
        failure.text = fmt::format("{} '{}': {}", failure.operation, name, problem);
        failure.ranks = std::move(missing);
    } else {
        return ready_.push_back({name, ballot.named, description, std::move(missing)});
    }
    append(std::move(failure));
}

/// The text; the failure receives the ranks at fault and the tensor.
std::string Negotiator::mismatch_of(const std::string& name, std::vector<Faction> factions,
                                    LogEntry& failure) const {
    std::ranges::sort(factions, {}, [](const Faction& f) { return f.ranks.front(); });
    for (const auto& faction : factions | std::views::drop(1))
        failure.ranks.insert(failure.ranks.end(), faction.ranks.begin(), faction.ranks.end());
    for (auto& faction : factions) faction.ranks = settings_.members.world_ranks(faction.ranks);
    return describe_mismatch(name, factions, failure.tensor);
}

/// The same where ranks have discarded it, which are the ranks at fault; empty if none has.
std::string Negotiator::discard_of(const std::string& name, std::vector<Faction> factions,
                                   LogEntry& failure) const {
    std::erase_if(factions, [](const Faction& f) { return f.description->discarded.empty(); });
    if (factions.empty()) return {};
    std::ranges::sort(factions, {}, [](const Faction& f) { return f.ranks.front(); });
    for (auto& faction : factions) {
        failure.ranks.insert(failure.ranks.end(), faction.ranks.begin(), faction.ranks.end());
        faction.ranks = settings_.members.world_ranks(faction.ranks);
    }
    return describe_discard(name, factions);
}

/// Why an operation cannot do without the ranks that have joined; empty if it can.
std::string Negotiator::refusal_without(std::span<const int> joined,
                                        const Description& description) const {
    if (joined.empty()) return {};
    switch (description.operation) {
        case OperationKind::broadcast:
            if (const auto root = settings_.members.position_of(description.root);
                !root || !std::ranges::binary_search(joined, *root))
                return {};
            return fmt::format("its root, rank {}, has joined", description.root);
        case OperationKind::all_to_all:
        case OperationKind::create_process_set:
        case OperationKind::remove_process_set:
            return fmt::format(
                "it needs every rank, and {} joined",
                joined.size() == 1
                    ? fmt::format("rank {} has", world_rank(joined.front()))
                    : fmt::format("{} have",
                                  base::list_ranks(settings_.members.world_ranks(joined))));
        default: return {};
    }
}

std::string Negotiator::departures_of(std::span<const int> ranks) const {
    std::string text;
    for (const int rank : ranks) {
        if (!departed_.contains(rank))
            throw Error(ErrorCode::wire, "another rank has submitted something twice");
        text += (text.empty() ? "" : ", ") +
                departure_text(settings_.members, rank, departed_.at(rank));
    }
    return text;
}

/// A departure completes ballots. It goes up behind their reports: were it ahead, the parent could
/// take a ballot for over while the votes of others, who have departed too, are still to come.
void Negotiator::depart(int rank, std::string_view reason) {
    if (finished_ || !departed_.emplace(rank, reason).second) return;
    if (tree_.is_root())
        append({.kind = LogEntry::Kind::depart,
                .text = departure_text(settings_.members, rank, reason),
                .ranks = {rank}});
    settle_all();
    if (!tree_.is_root()) write_word(Part::departure, rank, reason);
}

/// A rank that has joined is not waited for any more, until all have. Its word goes up behind
/// reports as that of a departure does.
void Negotiator::join(int rank, const std::string& name) {
    if (finished_ || joined_.contains(rank)) return;
    if (!joined_.empty() && name != join_name_)
        throw Error(ErrorCode::wire, fmt::format("rank {} has joined as '{}', others as '{}'",
                                                 world_rank(rank), name, join_name_));
    joined_.insert(rank);
    join_name_ = name;
    last_to_join_ = rank;
    settle_all();
    if (!tree_.is_root()) write_word(Part::joining, rank, name);
}

void Negotiator::settle_all() {
    std::vector<std::string> open;
    for (const auto& [name, ballot] : ballots_) open.push_back(name);
    std::ranges::sort(open);
    for (const auto& name : open) settle(name);
}

void Negotiator::write_word(Part part, int rank, std::string_view text) {
    auto& out = message_to(tree_.parent());
    out.enumerator(part);
    out.number(static_cast<std::uint64_t>(rank));
    out.string(text);
}

/// The root decides what comes before.
void Negotiator::leave(int rank, std::string_view reason) {
    if (finished_) return;
    if (tree_.is_root())
        return append({.kind = LogEntry::Kind::leave,
                       .code = ErrorCode::departed,
                       .text = departure_text(settings_.members, rank, reason),
                       .ranks = {rank}});
    write_word(Part::leaving, rank, reason);
}

void Negotiator::receive(int from, std::span<const std::byte> message) {
    Reader in(message);
    const auto position = in.number();
    if (applied_.contains(from)) child_applied(from, position);
    const auto too_late = [&] { return finished_ && applied_.contains(from); };  // for what goes up
    while (!in.at_end() && !too_late()) read_part(from, in);
}

void Negotiator::read_part(int from, Reader& in) {
    const auto part = in.enumerator(Part::joining);
    const bool from_parent = !tree_.is_root() && from == tree_.parent();
    if (from_parent != (part == Part::entry) || (!from_parent && !applied_.contains(from)))
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} is not one to send such a message to rank {}",
                                world_rank(from), world_rank(tree_.rank())));
    switch (part) {
        case Part::ready: read_ready(from, in); break;
        case Part::report: read_report(from, in); break;
        case Part::departure:
            std::apply([&](int rank, const auto& why) { depart(rank, why); }, read_word(from, in));
            break;
        case Part::leaving:
            std::apply([&](int rank, const auto& why) { leave(rank, why); }, read_word(from, in));
            break;
        case Part::joining:
            std::apply([&](int rank, const auto& name) { join(rank, name); }, read_word(from, in));
            break;
        case Part::entry: {
            auto entry = read_entry(in);
            for (const int child : tree_.children()) write_entry(entry, message_to(child));
            apply(std::move(entry));
            break;
        }
    }
}

void Negotiator::read_ready(int child, Reader& in) {
    const auto id =
        static_cast<std::uint32_t>(in.number(std::numeric_limits<std::uint32_t>::max()));
    const auto expected = in.fixed();
    std::string name;
    SharedDescription description;
    if (const auto known = names_.find(id); known != names_.end()) {
        name = known->second;
        description = records_.at(name).description;
    } else if (const auto retired = retired_.find(id); retired != retired_.end()) {
        name = retired->second.name;
        description = retired->second.description;
    } else {
        throw Error(ErrorCode::wire, fmt::format("rank {} sent id {}, which nobody has been given",
                                                 world_rank(child), id));
    }
    if (description->fingerprint != expected)
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} and rank {} hold different descriptions of '{}'",
                                world_rank(child), world_rank(tree_.rank()), name));
    count(name, true, description, subtrees_.at(child));
    settle(name);
}

void Negotiator::read_report(int child, Reader& in) {
    const auto name = in.string();
    const bool named = in.number(1) == 1;
    const auto& below = subtrees_.at(child);
    const bool more = in.number(1) == 1;
    const auto description = std::make_shared<const EncodedDescription>(in.bytes());
    std::vector<int> ranks(in.count(below.size()));
    for (int& rank : ranks) rank = in.rank(tree_.size());
    if (ranks.empty()) ranks = below;
    if (!std::ranges::includes(below, ranks))
        throw Error(ErrorCode::wire, fmt::format("rank {} reports for ranks that are not below it",
                                                 world_rank(child)));
    count(name, named, description, ranks);
    auto& reporting = ballots_.at(name).reporting;
    if (more)
        reporting.insert(child);
    else
        reporting.erase(child);
    settle(name);  // which waits for the factions to come: a rank of theirs may have departed
}

std::pair<int, std::string> Negotiator::read_word(int child, Reader& in) {
    const int rank = in.rank(tree_.size());
    auto text = in.string();
    if (!std::ranges::binary_search(subtrees_.at(child), rank))
        throw Error(ErrorCode::wire, fmt::format("rank {} reports for ranks that are not below it",
                                                 world_rank(child)));
    return {rank, std::move(text)};
}

/// Ids that the child can no longer use are dropped for good once no child can.
void Negotiator::child_applied(int child, std::uint64_t position) {
    if (position > position_)
        throw Error(
            ErrorCode::wire,
            fmt::format("rank {} has applied log entries that it cannot have", world_rank(child)));
    auto& known = applied_[child];
    known = std::max(known, position);
    const auto slowest = std::ranges::min(applied_ | std::views::values);
    std::erase_if(retired_, [&](const auto& entry) { return entry.second.position <= slowest; });
}

std::vector<Negotiator::Outgoing> Negotiator::take_messages() {
    if (tree_.is_root()) append_due();
    auto messages = std::exchange(full_, {});
    for (auto& [to, out] : outbox_) messages.push_back({to, out.take()});
    outbox_.clear();
    return messages;
}

Writer& Negotiator::message_to(int rank) {
    auto& out = outbox_[rank];
    if (out.size() > full_message_bytes) full_.push_back({rank, out.take()});
    if (out.empty()) out.number(position_);
    return out;
}

}  // namespace guozhuang::protocol
