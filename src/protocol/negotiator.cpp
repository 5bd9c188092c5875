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

constexpr std::size_t max_reason_bytes = 4096;  // of a shutdown: longer ones are cut

std::string shutdown_text(const GroupRanks& group_ranks, int rank, std::string_view reason) {
    return fmt::format("rank {} has {}{}", group_ranks.world_rank(rank),
                       group_ranks.are_the_world() ? "shut down" : "left " + group_ranks.name(),
                       reason.empty() ? "" : fmt::format(" ({})", reason));
}

}  // namespace

Negotiator::Negotiator(int rank, int size, const Options& options)
    : tree_(rank, size, options.degree), options_(options) {
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
    pass_on_if_complete(name);
}

void Negotiator::shut_down(std::string_view reason) {
    shut_down(tree_.rank(), reason.substr(0, max_reason_bytes));
}

void Negotiator::quit(std::string_view reason) {
    quit(tree_.rank(), reason.substr(0, max_reason_bytes));
}

void Negotiator::join(const std::string& name) {
    submissions_[name] = {};
    join(tree_.rank(), name);
}

/// Adds the ranks' submission to the tally, to the submission group that has submitted the same.
void Negotiator::count(const std::string& name, bool named, const SharedDescription& description,
                       std::span<const int> ranks) {
    auto& tally = tallies_[name];
    tally.named = named;
    tally.arrived += ranks.size();
    if (tally.arrived > subtrees_.at(tree_.rank()).size())
        throw Error(ErrorCode::wire,
                    fmt::format("more ranks have submitted '{}' than there are", name));
    auto group = std::ranges::find_if(tally.groups, [&](const SubmissionGroup& f) {
        return are_same(f.description, description);
    });
    if (group == tally.groups.end()) group = tally.groups.insert(group, {description, {}});
    group->ranks.insert(group->ranks.end(), ranks.begin(), ranks.end());
}

/// If every rank of the subtree has submitted, joined or shut down, the tally is complete: pass it
/// on.
void Negotiator::pass_on_if_complete(const std::string& name) {
    const auto found = tallies_.find(name);
    if (found == tallies_.end() || !complete(found->second)) return;
    auto tally = std::move(found->second);
    tallies_.erase(found);
    for (auto& group : tally.groups) std::sort(group.ranks.begin(), group.ranks.end());
    if (tree_.is_root())
        resolve(name, std::move(tally));
    else
        write_report(name, tally);
}

/// Ascending: the ranks of the subtree that have not submitted it.
std::vector<int> Negotiator::missing_from(const Tally& tally) const {
    std::vector<int> arrived, missing;
    for (const auto& group : tally.groups)
        arrived.insert(arrived.end(), group.ranks.begin(), group.ranks.end());
    std::ranges::sort(arrived);
    std::ranges::set_difference(subtrees_.at(tree_.rank()), arrived, std::back_inserter(missing));
    return missing;
}

bool Negotiator::complete(const Tally& tally) const {
    const auto whole = subtrees_.at(tree_.rank()).size();
    if (!tally.reporting.empty() || tally.arrived + shutdowns_.size() + joined_.size() < whole)
        return false;
    return tally.arrived == whole || std::ranges::all_of(missing_from(tally), [&](int rank) {
               return shutdowns_.contains(rank) || joined_.contains(rank);
           });
}

void Negotiator::write_report(const std::string& name, const Tally& tally) {
    const auto whole = subtrees_.at(tree_.rank()).size();
    const auto id_entry = id_table_.find(name);
    const auto& first = tally.groups.front();
    if (id_entry != id_table_.end() && first.ranks.size() == whole &&
        are_same(first.description, id_entry->second.description)) {
        auto& out = message_to(tree_.parent());
        out.enumerator(RecordType::ready);
        out.number(id_entry->second.id);
        out.fixed(first.description->fingerprint);
        return;
    }
    for (const auto& group : tally.groups) write_group(name, tally, group);
}

/// A record of its own, since one message may not hold the longest descriptions of all.
void Negotiator::write_group(const std::string& name, const Tally& tally,
                             const SubmissionGroup& group) {
    auto& out = message_to(tree_.parent());
    out.enumerator(RecordType::report);
    out.string(name);
    out.number(tally.named ? 1 : 0);
    out.number(&group == &tally.groups.back() ? 0 : 1);
    out.bytes(group.description->bytes);
    const bool everybody = group.ranks.size() == subtrees_.at(tree_.rank()).size();
    out.ranks(everybody ? std::vector<int>{} : group.ranks);
}

/// At the root: all ranks have submitted, joined or shut down, so the request is executed or fails,
/// on all of them.
void Negotiator::resolve(const std::string& name, Tally tally) {
    LogEntry failure;
    failure.kind = LogEntry::Kind::fail;
    failure.items = {{name, id_table_.contains(name) ? id_table_.at(name).id : 0}};
    failure.tensor = name;
    const auto description = tally.groups.front().description;
    failure.operation = protocol::name_of(description->operation);
    auto missing = missing_from(tally);
    std::ranges::copy_if(missing, std::back_inserter(failure.ranks),
                         [&](int rank) { return !joined_.contains(rank); });
    if (!failure.ranks.empty()) {
        failure.code = ErrorCode::departed;
        failure.text = fmt::format("{}; {} '{}' waits for it", shutdowns_of(failure.ranks),
                                   failure.operation, name);
    } else if (auto discard = discard_of(name, tally.groups, failure); !discard.empty()) {
        failure.code = ErrorCode::discarded;
        failure.text = std::move(discard);
    } else if (tally.groups.size() > 1) {
        failure.code = ErrorCode::mismatch;
        failure.text = mismatch_of(name, std::move(tally.groups), failure);
    } else if (auto problem = refusal_without(missing, *description); !problem.empty()) {
        failure.code = ErrorCode::departed;
        failure.text = fmt::format("{} '{}': {}", failure.operation, name, problem);
        failure.ranks = std::move(missing);
    } else {
        return ready_.push_back({name, tally.named, description, std::move(missing)});
    }
    append(std::move(failure));
}

/// The text; the failure receives the ranks at fault and the tensor.
std::string Negotiator::mismatch_of(const std::string& name, std::vector<SubmissionGroup> groups,
                                    LogEntry& failure) const {
    std::ranges::sort(groups, {}, [](const SubmissionGroup& f) { return f.ranks.front(); });
    for (const auto& group : groups | std::views::drop(1))
        failure.ranks.insert(failure.ranks.end(), group.ranks.begin(), group.ranks.end());
    for (auto& group : groups) group.ranks = options_.group_ranks.world_ranks(group.ranks);
    return describe_mismatch(name, groups, failure.tensor);
}

/// The same where ranks have discarded it, which are the ranks at fault; empty if none has.
std::string Negotiator::discard_of(const std::string& name, std::vector<SubmissionGroup> groups,
                                   LogEntry& failure) const {
    std::erase_if(groups,
                  [](const SubmissionGroup& f) { return f.description->discarded.empty(); });
    if (groups.empty()) return {};
    std::ranges::sort(groups, {}, [](const SubmissionGroup& f) { return f.ranks.front(); });
    for (auto& group : groups) {
        failure.ranks.insert(failure.ranks.end(), group.ranks.begin(), group.ranks.end());
        group.ranks = options_.group_ranks.world_ranks(group.ranks);
    }
    return describe_discard(name, groups);
}

/// Why an operation cannot do without the ranks that have joined; empty if it can.
std::string Negotiator::refusal_without(std::span<const int> joined,
                                        const Description& description) const {
    if (joined.empty()) return {};
    switch (description.operation) {
        case OperationKind::broadcast:
            if (const auto root = options_.group_ranks.group_rank_of(description.root);
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
                                  base::list_ranks(options_.group_ranks.world_ranks(joined))));
        default: return {};
    }
}

std::string Negotiator::shutdowns_of(std::span<const int> ranks) const {
    std::string text;
    for (const int rank : ranks) {
        if (!shutdowns_.contains(rank))
            throw Error(ErrorCode::wire, "another rank has submitted something twice");
        text += (text.empty() ? "" : ", ") +
                shutdown_text(options_.group_ranks, rank, shutdowns_.at(rank));
    }
    return text;
}

/// A shutdown completes tallies. It goes up behind their reports: were it ahead, the parent could
/// take a tally for complete while the submissions of others, who have shut down too, are still to
/// come.
void Negotiator::shut_down(int rank, std::string_view reason) {
    if (finished_ || !shutdowns_.emplace(rank, reason).second) return;
    if (tree_.is_root())
        append({.kind = LogEntry::Kind::shut_down,
                .text = shutdown_text(options_.group_ranks, rank, reason),
                .ranks = {rank}});
    pass_on_all_complete();
    if (!tree_.is_root()) write_rank_record(RecordType::shut_down, rank, reason);
}

/// A rank that has joined is not waited for any more, until all have. Its record goes up behind
/// reports as that of a shutdown does.
void Negotiator::join(int rank, const std::string& name) {
    if (finished_ || joined_.contains(rank)) return;
    if (!joined_.empty() && name != join_name_)
        throw Error(ErrorCode::wire, fmt::format("rank {} has joined as '{}', others as '{}'",
                                                 world_rank(rank), name, join_name_));
    joined_.insert(rank);
    join_name_ = name;
    last_to_join_ = rank;
    pass_on_all_complete();
    if (!tree_.is_root()) write_rank_record(RecordType::join, rank, name);
}

void Negotiator::pass_on_all_complete() {
    std::vector<std::string> open;
    for (const auto& [name, tally] : tallies_) open.push_back(name);
    std::ranges::sort(open);
    for (const auto& name : open) pass_on_if_complete(name);
}

void Negotiator::write_rank_record(RecordType type, int rank, std::string_view text) {
    auto& out = message_to(tree_.parent());
    out.enumerator(type);
    out.number(static_cast<std::uint64_t>(rank));
    out.string(text);
}

/// The root decides what comes before.
void Negotiator::quit(int rank, std::string_view reason) {
    if (finished_) return;
    if (tree_.is_root())
        return append({.kind = LogEntry::Kind::quit,
                       .code = ErrorCode::departed,
                       .text = shutdown_text(options_.group_ranks, rank, reason),
                       .ranks = {rank}});
    write_rank_record(RecordType::quit, rank, reason);
}

void Negotiator::receive(int from, std::span<const std::byte> message) {
    Reader in(message);
    const auto position = in.number();
    if (applied_.contains(from)) child_applied(from, position);
    const auto too_late = [&] { return finished_ && applied_.contains(from); };  // for what goes up
    while (!in.at_end() && !too_late()) read_record(from, in);
}

void Negotiator::read_record(int from, Reader& in) {
    const auto type = in.enumerator<RecordType>();
    const bool from_parent = !tree_.is_root() && from == tree_.parent();
    if (from_parent != (type == RecordType::entry) || (!from_parent && !applied_.contains(from)))
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} is not one to send such a message to rank {}",
                                world_rank(from), world_rank(tree_.rank())));
    switch (type) {
        case RecordType::ready: read_ready(from, in); break;
        case RecordType::report: read_report(from, in); break;
        case RecordType::shut_down:
            std::apply([&](int rank, const auto& why) { shut_down(rank, why); },
                       read_rank_record(from, in));
            break;
        case RecordType::quit:
            std::apply([&](int rank, const auto& why) { quit(rank, why); },
                       read_rank_record(from, in));
            break;
        case RecordType::join:
            std::apply([&](int rank, const auto& name) { join(rank, name); },
                       read_rank_record(from, in));
            break;
        case RecordType::entry: {
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
        description = id_table_.at(name).description;
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
    pass_on_if_complete(name);
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
    auto& reporting = tallies_.at(name).reporting;
    if (more)
        reporting.insert(child);
    else
        reporting.erase(child);
    pass_on_if_complete(name);  // which waits for groups to come: their ranks may have shut down
}

std::pair<int, std::string> Negotiator::read_rank_record(int child, Reader& in) {
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
