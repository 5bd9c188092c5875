#include "protocol/negotiator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <limits>
#include <memory>

#include "protocol/log_codec.hpp"

namespace guozhuang::protocol {
namespace {

std::string cut(std::string_view reason) {
    return std::string(reason.substr(0, max_reason_bytes));
}

}  // namespace

Negotiator::Negotiator(int rank, int size, const Options& options)
    : tree_(rank, size, options.degree),
      options_(options),
      attendance_(tree_.subtree(rank), options.group_ranks),
      ids_(tree_.children()) {
    subtrees_[rank] = tree_.subtree(rank);
    for (const int child : tree_.children()) subtrees_[child] = tree_.subtree(child);
}

void Negotiator::submit(const std::string& name, bool named, const SharedDescription& description) {
    submissions_[name] = description;
    if (finished_) return;
    const int self = tree_.rank();
    count(name, named, description, std::span(&self, 1));
    pass_on_if_complete(name);
}

void Negotiator::shut_down(std::string_view reason) {
    shut_down({tree_.rank(), cut(reason)});
}

void Negotiator::quit(std::string_view reason) {
    quit({tree_.rank(), cut(reason)});
}

void Negotiator::join(const std::string& name) {
    submissions_[name] = {};
    join({tree_.rank(), name});
}

void Negotiator::count(const std::string& name, bool named, const SharedDescription& description,
                       std::span<const int> ranks) {
    auto& tally = tallies_[name];
    tally.named = named;
    tally.add(description, ranks);
    if (tally.arrived > subtree().size())
        throw Error(ErrorCode::wire,
                    fmt::format("more ranks have submitted '{}' than there are", name));
}

/// Whether every rank of the subtree has submitted, joined or shut down.
bool Negotiator::is_complete(const Tally& tally) const {
    const auto whole = subtree().size();
    if (!tally.reporting.empty() || tally.arrived + attendance_.most_absent() < whole) return false;
    return tally.arrived == whole || attendance_.accounts_for(tally.missing_from(subtree()));
}

void Negotiator::pass_on_if_complete(const std::string& name) {
    const auto found = tallies_.find(name);
    if (found == tallies_.end() || !is_complete(found->second)) return;
    auto tally = std::move(found->second);
    tallies_.erase(found);
    for (auto& group : tally.groups) std::ranges::sort(group.ranks);
    if (!tree_.is_root()) return report(name, tally);
    auto missing = tally.missing_from(subtree());
    resolve({name, std::move(tally), std::move(missing)});
}

void Negotiator::pass_on_all_complete() {
    std::vector<std::string> open;
    for (const auto& [name, tally] : tallies_) open.push_back(name);
    std::ranges::sort(open);
    for (const auto& name : open) pass_on_if_complete(name);
}

/// To the parent: by the id, if all ranks mean what it stands for.
void Negotiator::report(const std::string& name, const Tally& tally) {
    const auto whole = subtree().size();
    const auto& first = tally.groups.front();
    const auto known = ids_.description_of(name);
    if (known && first.ranks.size() == whole && are_same(first.description, known))
        return tell(tree_.parent(), [&](Writer& out) {
            write_ready({ids_.id_of(name), known->fingerprint}, out);
        });
    for (const auto& group : tally.groups)
        tell(tree_.parent(), [&](Writer& out) {
            write_report({.name = name,
                          .named = tally.named,
                          .more = &group != &tally.groups.back(),
                          .description = group.description,
                          .ranks = group.ranks.size() == whole ? std::vector<int>{} : group.ranks},
                         out);
        });
}

/// At the root: the request is executed or fails, on all ranks.
void Negotiator::resolve(CompleteRound round) {
    if (auto failure = failure_of(round, attendance_, options_.group_ranks)) {
        failure->items.front().id = ids_.id_of(round.name);
        return append(std::move(*failure));
    }
    ready_.push_back({std::move(round.name), round.tally.named,
                      round.tally.groups.front().description, std::move(round.missing)});
}

/// A shutdown completes tallies. It goes up behind their reports: were it ahead, the parent could
/// take a tally for complete while the submissions of others, who have shut down too, are still to
/// come.
void Negotiator::shut_down(const RankRecord& shutdown) {
    const auto& [rank, reason] = shutdown;
    if (finished_ || !attendance_.shut_down(rank, reason)) return;
    pass_on_all_complete();
    if (!tree_.is_root()) tell_parent(RecordType::shut_down, shutdown);
}

/// A rank that has joined is not waited for any more, until all have. Its record goes up behind
/// reports as that of a shutdown does.
void Negotiator::join(const RankRecord& joining) {
    if (finished_ || !attendance_.join(joining.rank, joining.text)) return;
    pass_on_all_complete();
    if (!tree_.is_root()) tell_parent(RecordType::join, joining);
}

/// The root decides what comes before.
void Negotiator::quit(const RankRecord& quitting) {
    if (finished_) return;
    if (!tree_.is_root()) return tell_parent(RecordType::quit, quitting);
    append({.kind = LogEntry::Kind::quit,
            .code = ErrorCode::departed,
            .text = options_.group_ranks.shutdown_text(quitting.rank, quitting.text),
            .ranks = {quitting.rank}});
}

void Negotiator::tell_parent(RecordType type, const RankRecord& record) {
    tell(tree_.parent(), [&](Writer& out) { write_rank_record(type, record, out); });
}

void Negotiator::receive(int from, std::span<const std::byte> message) {
    Reader in(message);
    const auto position = in.number();
    const bool from_child = tree_.has_child(from);
    if (from_child && position > position_)
        throw Error(
            ErrorCode::wire,
            fmt::format("rank {} has applied log entries that it cannot have", world_rank(from)));
    if (from_child) ids_.child_has_applied(from, position);
    // A child's records are too late once the log is complete.
    while (!in.at_end() && !(from_child && finished_)) receive_record(from, in);
}

void Negotiator::receive_record(int from, Reader& in) {
    const auto type = in.enumerator<RecordType>();
    const bool from_parent = !tree_.is_root() && from == tree_.parent();
    if (from_parent != (type == RecordType::entry) || (!from_parent && !tree_.has_child(from)))
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} is not one to send such a message to rank {}",
                                world_rank(from), world_rank(tree_.rank())));
    switch (type) {
        case RecordType::ready: receive_ready(from, in); break;
        case RecordType::report: receive_report(from, in); break;
        case RecordType::shut_down: shut_down(receive_rank_record(from, in)); break;
        case RecordType::quit: quit(receive_rank_record(from, in)); break;
        case RecordType::join: join(receive_rank_record(from, in)); break;
        case RecordType::entry: receive_entry(in); break;
    }
}

void Negotiator::receive_ready(int child, Reader& in) {
    const auto record = read_ready(in);
    const auto meaning = ids_.meaning_of(record.id);
    if (!meaning)
        throw Error(ErrorCode::wire, fmt::format("rank {} sent id {}, which nobody has been given",
                                                 world_rank(child), record.id));
    if (meaning->description->fingerprint != record.fingerprint)
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} and rank {} hold different descriptions of '{}'",
                                world_rank(child), world_rank(tree_.rank()), meaning->name));
    count(meaning->name, true, meaning->description, subtrees_.at(child));
    pass_on_if_complete(meaning->name);
}

void Negotiator::receive_report(int child, Reader& in) {
    const auto& below = subtrees_.at(child);
    auto record = read_report(in, below.size(), tree_.size());
    if (record.ranks.empty()) record.ranks = below;
    check_is_below(child, record.ranks);
    count(record.name, record.named, record.description, record.ranks);
    auto& reporting = tallies_.at(record.name).reporting;
    if (record.more)
        reporting.insert(child);
    else
        reporting.erase(child);
    // This waits for groups to come, even if their ranks have shut down.
    pass_on_if_complete(record.name);
}

RankRecord Negotiator::receive_rank_record(int child, Reader& in) {
    auto record = read_rank_record(in, tree_.size());
    check_is_below(child, std::span(&record.rank, 1));
    return record;
}

void Negotiator::check_is_below(int child, std::span<const int> ranks) const {
    if (!std::ranges::includes(subtrees_.at(child), ranks))
        throw Error(ErrorCode::wire, fmt::format("rank {} reports for ranks that are not below it",
                                                 world_rank(child)));
}

void Negotiator::receive_entry(Reader& in) {
    auto entry = read_entry(in, ids_, tree_.size());
    if (finished_ || (std::ranges::count(entry.absent, tree_.rank()) > 0 &&
                      !attendance_.has_joined(tree_.rank())))
        throw Error(ErrorCode::wire, "the log holds an entry that cannot be");
    pass_down(entry);
    apply(std::move(entry));
}

std::vector<Outgoing> Negotiator::take_messages() {
    if (tree_.is_root()) append_due();
    return outbox_.take();
}

/// At the root: what has become due since the last time.
void Negotiator::append_due() {
    if (finished_) return;
    append_ready();
    const auto is_under_way = [&](const std::string& name) { return tallies_.contains(name); };
    if (auto items = ids_.surplus(options_.max_ids, is_under_way); !items.empty())
        append({.kind = LogEntry::Kind::evict, .items = std::move(items)});
    if (auto entry = attendance_.join_entry()) append(std::move(*entry));
    if (attendance_.have_all_shut_down()) append({.kind = LogEntry::Kind::all_shut_down});
}

/// Known ids first, ascending, so that the order does not hang on arrival.
void Negotiator::append_ready() {
    auto ready = std::exchange(ready_, {});
    if (ready.size() > 1)
        std::ranges::stable_sort(ready, {}, [&](const ReadyRequest& request) {
            const auto id = ids_.id_of(request.name);
            return id == 0 ? std::numeric_limits<std::uint32_t>::max() : id;
        });
    const FusionLimits limits{.tensor_bytes = options_.fusion_bytes,
                              .entry_bytes = Outbox::full_message_bytes};
    for (std::span<ReadyRequest> rest = ready; !rest.empty();) {
        const auto fused = rest.first(count_fused(rest, limits));
        rest = rest.subspan(fused.size());
        LogEntry entry{.policy = options_.policy, .absent = std::move(fused.front().absent)};
        for (auto& request : fused) {
            auto id = ids_.id_of(request.name);
            if (id == 0 && request.named) id = ids_.new_id();
            entry.items.push_back({std::move(request.name), id});
            if (!entry.absent.empty()) entry.descriptions.push_back(request.description->bytes);
        }
        append(std::move(entry));
    }
    ready.clear();
    ready_.swap(ready);  // its memory is used again
}

void Negotiator::append(LogEntry entry) {
    if (entry.text.size() > max_entry_text_bytes) entry.text.resize(max_entry_text_bytes);
    pass_down(entry);
    apply(std::move(entry));
}

void Negotiator::pass_down(const LogEntry& entry) {
    for (const int child : tree_.children())
        tell(child, [&](Writer& out) {
            out.enumerator(RecordType::entry);
            write_entry(entry, ids_, out);
        });
}

/// The log goes on: the same on every rank. What this rank submitted is resolved, and names get and
/// lose their ids.
void Negotiator::apply(LogEntry entry) {
    ++position_;
    if (entry.kind == LogEntry::Kind::evict) {
        for (const auto& item : entry.items) ids_.retire(item, position_);
        // The parent keeps the ids until it knows that this rank has applied the entry, and this
        // rank may have nothing else to say.
        if (!tree_.is_root()) tell(tree_.parent(), [](Writer&) {});
    } else if (entry.kind == LogEntry::Kind::execute) {
        apply_execution(entry);
    } else {
        for (const auto& item : entry.items) submissions_.erase(item.name);
    }
    if (entry.kind == LogEntry::Kind::join) attendance_.end_join();
    finished_ = finished_ || entry.kind == LogEntry::Kind::all_shut_down ||
                entry.kind == LogEntry::Kind::quit;
    entries_.push_back(std::move(entry));
}

/// A rank that has not submitted a request knows it by the description in the entry, if any.
void Negotiator::apply_execution(const LogEntry& entry) {
    for (std::size_t i = 0; i < entry.items.size(); ++i) {
        const auto& item = entry.items[i];
        auto own = submissions_.extract(item.name);
        if (item.id == 0) continue;
        if (!own.empty())
            ids_.use(item, std::move(own.mapped()), position_);
        else if (!entry.descriptions.empty())
            ids_.use(item, std::make_shared<const EncodedDescription>(entry.descriptions[i]),
                     position_);
    }
}

}  // namespace guozhuang::protocol
