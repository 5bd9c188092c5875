#include "engine/negotiator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <limits>
#include <ranges>
#include <tuple>

namespace guozhuang::engine {
namespace {

constexpr std::uint64_t protocol_version = 1;
constexpr std::uint64_t first_epoch = 1;
constexpr std::size_t max_reason_bytes = 4096;        // of a departure: longer ones are cut
constexpr std::size_t max_text_bytes = 1u << 20;      // of an entry
constexpr std::size_t full_message_bytes = 1u << 20;  // beyond which the next part begins another message, and nothing joins an entry
constexpr std::size_t most_bytes_beside_name = 10;    // of an item: its id and the length of the name

/// The parts a message is made of.
enum class Part : std::uint8_t {
    ready,      ///< up: every rank of my subtree has submitted this id
    report,     ///< up: the same in full; several of them, if the ranks differ
    departure,  ///< up: this rank submits nothing more
    entry,      ///< down: the next entry of the log
    leaving     ///< up: this rank is about to end
};

std::size_t bytes_of(const Description& description) {
    std::size_t bytes = 0;
    for (const auto& tensor : description.tensors) bytes += count_of(tensor.shape) * size_of(tensor.dtype);
    return bytes;
}

/// Whether requests like this one may share an entry with others, and with which: equal keys fuse.
std::optional<Bytes> fusion_key(Description description) {
    const bool fusable = description.operation == Operation::allreduce || description.operation == Operation::broadcast;
    if (!fusable || description.group || description.tensors.size() != 1) return std::nullopt;
    description.tensors.front().name.clear();
    description.tensors.front().shape.clear();
    return encode(description);
}

bool has_text(LogEntry::Kind kind) {
    return kind == LogEntry::Kind::fail || kind == LogEntry::Kind::depart || kind == LogEntry::Kind::leave;
}

std::string departure_text(const Members& members, int rank, std::string_view reason) {
    return fmt::format("rank {} has {}{}", members.world_rank(rank), members.are_the_world() ? "shut down" : "left " + members.name(),
                       reason.empty() ? "" : fmt::format(" ({})", reason));
}

}  // namespace

Negotiator::Negotiator(int rank, int size, const Settings& settings) : tree_(rank, size, settings.degree), settings_(settings) {
    subtrees_[rank] = tree_.subtree(rank);
    for (const int child : tree_.children()) {
        subtrees_[child] = tree_.subtree(child);
        applied_[child] = 0;
    }
}

void Negotiator::submit(const std::string& name, bool named, const Description& description) {
    auto& own = submissions_[name] = encode(description);
    if (finished_) return;
    const int self = tree_.rank();
    count(name, named, own, std::span(&self, 1));
    settle(name);
}

void Negotiator::depart(std::string_view reason) {
    depart(tree_.rank(), reason.substr(0, max_reason_bytes));
}

void Negotiator::leave(std::string_view reason) {
    leave(tree_.rank(), reason.substr(0, max_reason_bytes));
}

std::vector<std::string> Negotiator::unresolved() const {
    std::vector<std::string> names;
    for (const auto& [name, description] : submissions_) names.push_back(name);
    std::ranges::sort(names);
    return names;
}

/// Adds the ranks' submission to the ballot, to the faction that has submitted the same.
void Negotiator::count(const std::string& name, bool named, std::span<const std::byte> description, std::span<const int> ranks) {
    auto& ballot = ballots_[name];
    ballot.named = named;
    ballot.arrived += ranks.size();
    if (ballot.arrived > subtrees_.at(tree_.rank()).size())
        throw Error(ErrorCode::wire, fmt::format("more ranks have submitted '{}' than there are", name));
    auto faction = std::find_if(ballot.factions.begin(), ballot.factions.end(),
                                [&](const Faction& f) { return std::ranges::equal(f.description, description); });
    if (faction == ballot.factions.end()) faction = ballot.factions.insert(faction, {Bytes(description.begin(), description.end()), {}});
    faction->ranks.insert(faction->ranks.end(), ranks.begin(), ranks.end());
}

/// If every rank of the subtree has submitted or departed, the ballot is over: pass it on.
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

bool Negotiator::complete(const Ballot& ballot) const {
    const auto whole = subtrees_.at(tree_.rank()).size();
    if (!ballot.reporting.empty() || ballot.arrived + departed_.size() < whole) return false;
    const auto absent = static_cast<std::size_t>(std::ranges::count_if(departed_, [&](const auto& departed) {
        return std::ranges::none_of(ballot.factions,
                                    [&](const Faction& f) { return std::ranges::find(f.ranks, departed.first) != f.ranks.end(); });
    }));
    return ballot.arrived + absent == whole;
}

void Negotiator::write_report(const std::string& name, const Ballot& ballot) {
    const auto whole = subtrees_.at(tree_.rank()).size();
    const auto record = records_.find(name);
    const auto& first = ballot.factions.front();
    if (record != records_.end() && first.ranks.size() == whole && first.description == record->second.description) {
        auto& out = message_to(tree_.parent());
        out.enumerator(Part::ready);
        out.number(record->second.id);
        out.fixed(fingerprint(first.description));
        return;
    }
    for (const auto& faction : ballot.factions) write_faction(name, ballot, faction);
}

/// A part of its own, since one message may not hold the longest descriptions of all.
void Negotiator::write_faction(const std::string& name, const Ballot& ballot, const Faction& faction) {
    auto& out = message_to(tree_.parent());
    out.enumerator(Part::report);
    out.string(name);
    out.number(ballot.named ? 1 : 0);
    out.number(&faction == &ballot.factions.back() ? 0 : 1);
    out.bytes(faction.description);
    const bool everybody = faction.ranks.size() == subtrees_.at(tree_.rank()).size();
    out.number(everybody ? 0 : faction.ranks.size());
    for (const int rank : everybody ? std::vector<int>{} : faction.ranks) out.number(static_cast<std::uint64_t>(rank));
}

/// At the root: all ranks have submitted or departed, so the request is executed or fails, on all of them.
void Negotiator::resolve(const std::string& name, Ballot ballot) {
    LogEntry failure;
    failure.kind = LogEntry::Kind::fail;
    failure.items = {{name, records_.contains(name) ? records_.at(name).id : 0}};
    failure.tensor = name;
    failure.operation = engine::name_of(decode_description(ballot.factions.front().description).operation);
    for (const auto& [rank, reason] : departed_) {
        const auto submitted = [&](const Faction& f) { return std::ranges::binary_search(f.ranks, rank); };
        if (std::ranges::any_of(ballot.factions, submitted)) continue;
        failure.code = ErrorCode::departed;
        failure.text += (failure.ranks.empty() ? "" : ", ") + departure_text(settings_.members, rank, reason);
        failure.ranks.push_back(rank);
    }
    if (!failure.ranks.empty()) {
        failure.text += fmt::format("; {} '{}' waits for it", failure.operation, name);
        append(std::move(failure));
    } else if (ballot.factions.size() > 1) {
        std::ranges::sort(ballot.factions, {}, [](const Faction& f) { return f.ranks.front(); });
        failure.code = ErrorCode::mismatch;
        for (const auto& faction : ballot.factions | std::views::drop(1))
            failure.ranks.insert(failure.ranks.end(), faction.ranks.begin(), faction.ranks.end());
        for (auto& faction : ballot.factions) faction.ranks = settings_.members.world_ranks(faction.ranks);
        failure.text = describe_mismatch(name, ballot.factions, failure.tensor);
        append(std::move(failure));
    } else {
        ready_.push_back({name, ballot.named, std::move(ballot.factions.front().description)});
    }
}

/// A departure completes ballots. It goes up behind their reports: were it ahead, the parent could take a ballot for over while the votes of
/// others, who have departed too, are still to come.
void Negotiator::depart(int rank, std::string_view reason) {
    if (finished_ || !departed_.emplace(rank, reason).second) return;
    if (tree_.is_root()) append({.kind = LogEntry::Kind::depart, .text = departure_text(settings_.members, rank, reason), .ranks = {rank}});
    std::vector<std::string> open;
    for (const auto& [name, ballot] : ballots_) open.push_back(name);
    std::ranges::sort(open);
    for (const auto& name : open) settle(name);
    if (tree_.is_root()) return;
    auto& out = message_to(tree_.parent());
    out.enumerator(Part::departure);
    out.number(static_cast<std::uint64_t>(rank));
    out.string(reason);
}

/// The root decides what comes before.
void Negotiator::leave(int rank, std::string_view reason) {
    if (finished_) return;
    if (tree_.is_root())
        return append({.kind = LogEntry::Kind::leave,
                       .code = ErrorCode::departed,
                       .text = departure_text(settings_.members, rank, reason),
                       .ranks = {rank}});
    auto& out = message_to(tree_.parent());
    out.enumerator(Part::leaving);
    out.number(static_cast<std::uint64_t>(rank));
    out.string(reason);
}

void Negotiator::receive(int from, std::span<const std::byte> message) {
    Reader in(message);
    const auto version = in.number();
    if (version != protocol_version)
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} speaks protocol version {}, this rank {}", world_rank(from), version, protocol_version));
    const auto epoch = in.number();
    if (epoch != first_epoch) throw Error(ErrorCode::wire, fmt::format("rank {} sent a message of epoch {}", world_rank(from), epoch));
    const auto position = in.number();
    if (applied_.contains(from)) child_applied(from, position);
    const auto too_late = [&] { return finished_ && applied_.contains(from); };  // for what goes up
    while (!in.at_end() && !too_late()) read_part(from, in);
}

void Negotiator::read_part(int from, Reader& in) {
    const auto part = in.enumerator(Part::leaving);
    const bool from_parent = !tree_.is_root() && from == tree_.parent();
    if (from_parent != (part == Part::entry) || (!from_parent && !applied_.contains(from)))
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} is not one to send such a message to rank {}", world_rank(from), world_rank(tree_.rank())));
    switch (part) {
        case Part::ready: read_ready(from, in); break;
        case Part::report: read_report(from, in); break;
        case Part::departure: std::apply([&](int rank, const auto& why) { depart(rank, why); }, read_departure(from, in)); break;
        case Part::leaving: std::apply([&](int rank, const auto& why) { leave(rank, why); }, read_departure(from, in)); break;
        case Part::entry: {
            auto entry = read_entry(in);
            for (const int child : tree_.children()) write_entry(entry, message_to(child));
            apply(std::move(entry));
            break;
        }
    }
}

void Negotiator::read_ready(int child, Reader& in) {
    const auto id = static_cast<std::uint32_t>(in.number(std::numeric_limits<std::uint32_t>::max()));
    const auto expected = in.fixed();
    std::string name;
    Bytes description;
    if (const auto known = names_.find(id); known != names_.end()) {
        name = known->second;
        description = records_.at(name).description;
    } else if (const auto retired = retired_.find(id); retired != retired_.end()) {
        name = retired->second.name;
        description = retired->second.description;
    } else {
        throw Error(ErrorCode::wire, fmt::format("rank {} sent id {}, which nobody has been given", world_rank(child), id));
    }
    if (fingerprint(description) != expected)
        throw Error(ErrorCode::wire, fmt::format("rank {} and rank {} hold different descriptions of '{}'", world_rank(child),
                                                 world_rank(tree_.rank()), name));
    count(name, true, description, subtrees_.at(child));
    settle(name);
}

void Negotiator::read_report(int child, Reader& in) {
    const auto name = in.string();
    const bool named = in.number(1) == 1;
    const auto& below = subtrees_.at(child);
    const bool more = in.number(1) == 1;
    const auto description = in.bytes();
    decode_description(description);  // throws if it is malformed
    std::vector<int> ranks(in.count(below.size()));
    for (int& rank : ranks) rank = in.rank(tree_.size());
    if (ranks.empty()) ranks = below;
    if (!std::ranges::includes(below, ranks))
        throw Error(ErrorCode::wire, fmt::format("rank {} reports for ranks that are not below it", world_rank(child)));
    count(name, named, description, ranks);
    auto& reporting = ballots_.at(name).reporting;
    if (more)
        reporting.insert(child);
    else
        reporting.erase(child);
    settle(name);  // which waits for the factions to come: a rank of theirs may have departed
}

std::pair<int, std::string> Negotiator::read_departure(int child, Reader& in) {
    const int rank = in.rank(tree_.size());
    auto reason = in.string();
    if (!std::ranges::binary_search(subtrees_.at(child), rank))
        throw Error(ErrorCode::wire, fmt::format("rank {} reports for ranks that are not below it", world_rank(child)));
    return {rank, std::move(reason)};
}

/// Ids that the child can no longer use are dropped for good once no child can.
void Negotiator::child_applied(int child, std::uint64_t position) {
    if (position > position_)
        throw Error(ErrorCode::wire, fmt::format("rank {} has applied log entries that it cannot have", world_rank(child)));
    auto& known = applied_[child];
    known = std::max(known, position);
    const auto slowest = std::ranges::min(applied_ | std::views::values);
    std::erase_if(retired_, [&](const auto& entry) { return entry.second.position <= slowest; });
}

std::vector<Negotiator::Outgoing> Negotiator::take_messages() {
    if (tree_.is_root()) append_ready();
    auto messages = std::exchange(full_, {});
    for (auto& [to, out] : outbox_) messages.push_back({to, out.take()});
    outbox_.clear();
    return messages;
}

Writer& Negotiator::message_to(int rank) {
    auto& out = outbox_[rank];
    if (out.size() > full_message_bytes) full_.push_back({rank, out.take()});
    if (out.empty()) {
        out.number(protocol_version);
        out.number(first_epoch);
        out.number(position_);
    }
    return out;
}

/// At the root: one entry for each bundle of what is ready. Known ids first, ascending, so that the order does not hang on arrival.
void Negotiator::append_ready() {
    if (finished_) return;
    const auto id_of = [&](const ReadyRequest& request) {
        const auto record = records_.find(request.name);
        return record == records_.end() ? std::numeric_limits<std::uint32_t>::max() : record->second.id;
    };
    std::ranges::stable_sort(ready_, {}, id_of);
    LogEntry entry;
    entry.policy = settings_.policy;
    std::optional<Bytes> key;
    std::size_t bytes = 0, entry_bytes = 0;
    for (auto& request : std::exchange(ready_, {})) {
        const auto description = decode_description(request.description);
        const auto next_bytes = bytes_of(description);
        auto next_key = fusion_key(description);
        if (!entry.items.empty() && !(key && key == next_key && bytes + next_bytes <= settings_.fusion_bytes &&
                                      entry_bytes + request.name.size() <= full_message_bytes)) {
            append(entry);
            entry.items.clear();
            bytes = entry_bytes = 0;
        }
        const auto known = records_.find(request.name);
        const auto id = known != records_.end() ? known->second.id : request.named ? next_id_++ : 0;
        entry.items.push_back({request.name, id});
        bytes += next_bytes;
        entry_bytes += request.name.size() + most_bytes_beside_name;
        key = std::move(next_key);
    }
    if (!entry.items.empty()) append(std::move(entry));
    if (records_.size() > settings_.max_ids) forget_oldest();
    if (departed_.size() == subtrees_.at(0).size()) append({.kind = LogEntry::Kind::shutdown});
}

void Negotiator::append(LogEntry entry) {
    if (entry.text.size() > max_text_bytes) entry.text.resize(max_text_bytes);
    for (const int child : tree_.children()) write_entry(entry, message_to(child));
    apply(std::move(entry));
}

/// Voids the least recently used ids, an eighth of the table at once, but none that is on its way.
void Negotiator::forget_oldest() {
    std::vector<std::pair<std::uint64_t, std::string>> candidates;
    for (const auto& [name, record] : records_)
        if (!ballots_.contains(name)) candidates.emplace_back(record.last_used, name);
    std::ranges::sort(candidates);
    const auto surplus = records_.size() - settings_.max_ids + settings_.max_ids / 8;
    if (candidates.size() > surplus) candidates.resize(surplus);
    LogEntry entry{.kind = LogEntry::Kind::forget};
    for (const auto& [last_used, name] : candidates) entry.items.push_back({name, records_.at(name).id});
    if (!entry.items.empty()) append(std::move(entry));
}

void Negotiator::write_entry(const LogEntry& entry, Writer& out) const {
    out.enumerator(Part::entry);
    out.enumerator(entry.kind);
    out.number(entry.items.size());
    for (const auto& item : entry.items) {
        const bool known = names_.contains(item.id);
        out.number(item.id);
        if (!known) out.string(item.name);
    }
    if (entry.kind == LogEntry::Kind::execute) {
        out.enumerator(entry.policy.forced);
        out.number(entry.policy.reproducible ? 1 : 0);
        out.number(entry.policy.staging ? 1 : 0);
        out.number(entry.policy.small_bytes);
        out.number(entry.policy.segment_bytes);
    } else if (has_text(entry.kind)) {
        out.enumerator(entry.code);
        for (const auto* text : {&entry.text, &entry.tensor, &entry.operation}) out.string(*text);
        out.number(entry.ranks.size());
        for (const int rank : entry.ranks) out.number(static_cast<std::uint64_t>(rank));
    }
}

LogEntry Negotiator::read_entry(Reader& in) {
    LogEntry entry;
    entry.kind = in.enumerator(LogEntry::Kind::leave);
    entry.items.resize(in.count(max_tensors));
    for (auto& item : entry.items) {
        item.id = static_cast<std::uint32_t>(in.number(std::numeric_limits<std::uint32_t>::max()));
        const auto known = names_.find(item.id);
        item.name = known != names_.end() ? known->second : in.string();
        if (known == names_.end() && (entry.kind == LogEntry::Kind::forget || records_.contains(item.name)))
            throw Error(ErrorCode::wire, fmt::format("the log gives '{}' an id that is not its own", item.name));
    }
    if (entry.kind == LogEntry::Kind::execute) {
        entry.policy.forced = in.enumerator(Algorithm::parameter_server);
        entry.policy.reproducible = in.number(1) == 1;
        entry.policy.staging = in.number(1) == 1;
        entry.policy.small_bytes = in.number();
        entry.policy.segment_bytes = in.number();
    } else if (has_text(entry.kind)) {
        entry.code = in.enumerator(ErrorCode::internal);
        for (auto* text : {&entry.text, &entry.tensor, &entry.operation}) *text = in.string(max_text_bytes);
        entry.ranks.resize(in.count(static_cast<std::size_t>(tree_.size())));
        for (int& rank : entry.ranks) rank = in.rank(tree_.size());
    }
    if (finished_ || (entry.kind == LogEntry::Kind::execute && entry.items.empty()) ||
        ((entry.kind == LogEntry::Kind::depart || entry.kind == LogEntry::Kind::leave) && entry.ranks.size() != 1))
        throw Error(ErrorCode::wire, "the log holds an entry that cannot be");
    return entry;
}

/// The log goes on: the same on every rank. What this rank submitted is resolved, and names get and lose their ids.
void Negotiator::apply(LogEntry entry) {
    ++position_;
    for (const auto& item : entry.items) {
        if (entry.kind == LogEntry::Kind::forget) {
            auto record = records_.extract(item.name);
            if (record.empty()) throw Error(ErrorCode::wire, fmt::format("the log forgets '{}' twice", item.name));
            retired_[item.id] = {item.name, std::move(record.mapped().description), position_};
            names_.erase(item.id);
            continue;
        }
        const auto own = submissions_.find(item.name);
        if (entry.kind == LogEntry::Kind::execute && item.id != 0 && own != submissions_.end()) {
            names_[item.id] = item.name;
            records_[item.name] = {item.id, std::move(own->second), position_};
        }
        if (own != submissions_.end()) submissions_.erase(own);
    }
    if (tree_.children().empty()) retired_.clear();
    finished_ = finished_ || entry.kind == LogEntry::Kind::shutdown || entry.kind == LogEntry::Kind::leave;
    entries_.push_back(std::move(entry));
}

}  // namespace guozhuang::engine
