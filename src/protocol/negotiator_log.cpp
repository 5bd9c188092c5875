// The log of a negotiation: what the root appends, how it goes down the tree, and what follows from
// it on every rank.
#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <limits>

#include "protocol/negotiator.hpp"
#include "protocol/policy_codec.hpp"

namespace guozhuang::protocol {
namespace {

constexpr std::size_t max_text_bytes = 1u << 20;  // of an entry
// Of an item: its id, and the lengths of its name and description.
constexpr std::size_t most_bytes_beside_name = 20;

std::size_t bytes_of(const Description& description) {
    std::size_t bytes = 0;
    for (const auto& tensor : description.tensors)
        bytes += count_of(tensor.shape) * size_of(tensor.dtype);
    return bytes;
}

bool is_fusable(const Description& description) {
    const bool moves_in_place = description.operation == OperationKind::allreduce ||
                                description.operation == OperationKind::broadcast;
    return moves_in_place && !description.group && description.tensors.size() == 1;
}

/// Whether two requests may share an entry.
bool can_fuse(const EncodedDescription& one, const EncodedDescription& other) {
    return is_fusable(one) && is_fusable(other) && are_same_but_for_tensors(one, other) &&
           one.tensors.front().dtype == other.tensors.front().dtype;
}

bool has_text(LogEntry::Kind kind) {
    return kind == LogEntry::Kind::fail || kind == LogEntry::Kind::shut_down ||
           kind == LogEntry::Kind::join || kind == LogEntry::Kind::quit;
}

bool can_be(const LogEntry& entry) {
    switch (entry.kind) {
        case LogEntry::Kind::execute: return !entry.items.empty();
        case LogEntry::Kind::fail: return entry.items.size() == 1;
        case LogEntry::Kind::shut_down:
        case LogEntry::Kind::quit: return entry.ranks.size() == 1;
        case LogEntry::Kind::join: return entry.items.size() == 1 && !entry.ranks.empty();
        default: return true;
    }
}

}  // namespace

/// At the root: what has become due since the last time.
void Negotiator::append_due() {
    if (finished_) return;
    append_ready();
    if (id_table_.size() > options_.max_ids) evict_oldest();
    append_join();
    if (shutdowns_.size() == subtrees_.at(0).size())
        append({.kind = LogEntry::Kind::all_shut_down});
}

/// One entry for each bundle of what is ready. Known ids first, ascending, so that the order does
/// not hang on arrival.
void Negotiator::append_ready() {
    if (ready_.empty()) return;
    const auto id_of = [&](const ReadyRequest& request) {
        const auto id_entry = id_table_.find(request.name);
        return id_entry == id_table_.end() ? std::numeric_limits<std::uint32_t>::max()
                                           : id_entry->second.id;
    };
    std::ranges::stable_sort(ready_, {}, id_of);
    LogEntry entry;
    entry.policy = options_.policy;
    SharedDescription previous;
    std::size_t bytes = 0, entry_bytes = 0;
    for (auto& request : std::exchange(ready_, {})) {
        const auto& description = *request.description;
        const auto next_bytes = bytes_of(description);
        const auto next_entry_bytes =
            request.name.size() + (request.absent.empty() ? 0 : description.bytes.size());
        if (!entry.items.empty() &&
            !(can_fuse(*previous, description) && entry.absent == request.absent &&
              bytes + next_bytes <= options_.fusion_bytes &&
              entry_bytes + next_entry_bytes <= full_message_bytes)) {
            append(entry);
            entry.items.clear();
            entry.descriptions.clear();
            bytes = entry_bytes = 0;
        }
        const auto known = id_table_.find(request.name);
        const auto id = known != id_table_.end() ? known->second.id
                        : request.named          ? next_id_++
                                                 : 0;
        entry.items.push_back({request.name, id});
        entry.absent = request.absent;
        if (!entry.absent.empty()) entry.descriptions.push_back(description.bytes);
        bytes += next_bytes;
        entry_bytes += next_entry_bytes + most_bytes_beside_name;
        previous = request.description;
    }
    if (!entry.items.empty()) append(std::move(entry));
}

/// Once all have joined, or shut down instead.
void Negotiator::append_join() {
    const auto& whole = subtrees_.at(0);
    if (joined_.empty() || joined_.size() + shutdowns_.size() < whole.size()) return;
    std::vector<int> missing;
    std::ranges::copy_if(whole, std::back_inserter(missing),
                         [&](int rank) { return !joined_.contains(rank); });
    if (!std::ranges::all_of(missing, [&](int rank) { return shutdowns_.contains(rank); })) return;
    LogEntry entry{.kind = LogEntry::Kind::join, .items = {{join_name_}}, .ranks = {last_to_join_}};
    if (!missing.empty()) {
        entry.code = ErrorCode::departed;
        entry.text = fmt::format("{}; join '{}' waits for it", shutdowns_of(missing), join_name_);
        entry.tensor = join_name_;
        entry.operation = name_of(OperationKind::join);
        entry.ranks = std::move(missing);
    }
    append(std::move(entry));
}

void Negotiator::append(LogEntry entry) {
    if (entry.text.size() > max_text_bytes) entry.text.resize(max_text_bytes);
    for (const int child : tree_.children()) write_entry(entry, message_to(child));
    apply(std::move(entry));
}

/// Voids the least recently used ids, an eighth of the table at once, but none that is on its way.
void Negotiator::evict_oldest() {
    std::vector<std::pair<std::uint64_t, std::string>> candidates;
    for (const auto& [name, id_entry] : id_table_)
        if (!tallies_.contains(name)) candidates.emplace_back(id_entry.last_used, name);
    std::ranges::sort(candidates);
    const auto surplus = id_table_.size() - options_.max_ids + options_.max_ids / 8;
    if (candidates.size() > surplus) candidates.resize(surplus);
    LogEntry entry{.kind = LogEntry::Kind::evict};
    for (const auto& [last_used, name] : candidates)
        entry.items.push_back({name, id_table_.at(name).id});
    if (!entry.items.empty()) append(std::move(entry));
}

void Negotiator::write_entry(const LogEntry& entry, Writer& out) const {
    out.enumerator(RecordType::entry);
    out.enumerator(entry.kind);
    out.number(entry.items.size());
    for (const auto& item : entry.items) {
        const bool known = names_.contains(item.id);
        out.number(item.id);
        if (!known) out.string(item.name);
    }
    if (entry.kind == LogEntry::Kind::execute) {
        write(out, entry.policy);
        out.ranks(entry.absent);
        for (const auto& description : entry.descriptions) out.bytes(description);
    } else if (has_text(entry.kind)) {
        out.enumerator(entry.code);
        for (const auto* text : {&entry.text, &entry.tensor, &entry.operation}) out.string(*text);
        out.ranks(entry.ranks);
    }
}

LogEntry Negotiator::read_entry(Reader& in) {
    LogEntry entry;
    entry.kind = in.enumerator<LogEntry::Kind>();
    entry.items.resize(in.count(max_tensors));
    for (auto& item : entry.items) {
        item.id = static_cast<std::uint32_t>(in.number(std::numeric_limits<std::uint32_t>::max()));
        const auto known = names_.find(item.id);
        item.name = known != names_.end() ? known->second : in.string();
        if (known == names_.end() &&
            (entry.kind == LogEntry::Kind::evict || id_table_.contains(item.name)))
            throw Error(ErrorCode::wire,
                        fmt::format("the log gives '{}' an id that is not its own", item.name));
    }
    if (entry.kind == LogEntry::Kind::execute) {
        read(in, entry.policy);
        entry.absent = in.ranks(tree_.size());
        if (!entry.absent.empty())
            for (std::size_t i = 0; i < entry.items.size(); ++i)
                decode_description(entry.descriptions.emplace_back(in.bytes()));
    } else if (has_text(entry.kind)) {
        entry.code = in.enumerator<ErrorCode>();
        for (auto* text : {&entry.text, &entry.tensor, &entry.operation})
            *text = in.string(max_text_bytes);
        entry.ranks = in.ranks(tree_.size());
    }
    if (finished_ || !can_be(entry) ||
        (std::ranges::count(entry.absent, tree_.rank()) > 0 && !joined_.contains(tree_.rank())))
        throw Error(ErrorCode::wire, "the log holds an entry that cannot be");
    return entry;
}

/// The log goes on: the same on every rank. What this rank submitted is resolved, and names get and
/// lose their ids.
void Negotiator::apply(LogEntry entry) {
    ++position_;
    for (std::size_t i = 0; i < entry.items.size(); ++i) {
        const auto& item = entry.items[i];
        if (entry.kind == LogEntry::Kind::evict) {
            auto id_entry = id_table_.extract(item.name);
            if (id_entry.empty())
                throw Error(ErrorCode::wire, fmt::format("the log forgets '{}' twice", item.name));
            retired_[item.id] = {item.name, std::move(id_entry.mapped().description), position_};
            names_.erase(item.id);
            continue;
        }
        auto own = submissions_.extract(item.name);
        if (entry.kind != LogEntry::Kind::execute || item.id == 0 ||
            (own.empty() && entry.descriptions.empty()))
            continue;
        names_[item.id] = item.name;
        id_table_[item.name] = {
            item.id,
            own.empty() ? std::make_shared<const EncodedDescription>(entry.descriptions[i])
                        : std::move(own.mapped()),
            position_};
    }
    if (tree_.children().empty()) retired_.clear();
    // The parent keeps the ids until it knows that this rank has applied the entry, and this rank
    // may have nothing else to say.
    if (entry.kind == LogEntry::Kind::evict && !tree_.is_root()) message_to(tree_.parent());
    if (entry.kind == LogEntry::Kind::join) joined_.clear();
    finished_ = finished_ || entry.kind == LogEntry::Kind::all_shut_down ||
                entry.kind == LogEntry::Kind::quit;
    entries_.push_back(std::move(entry));
}

}  // namespace guozhuang::protocol
