#include "protocol/negotiator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <guozhuang/error.hpp>
#include <limits>
#include <memory>

#include "base/error_text.hpp"
#include "protocol/failure.hpp"
#include "protocol/log_codec.hpp"

namespace guozhuang::protocol {
namespace {

std::string cut(std::string_view reason) {
    return std::string(reason.substr(0, max_reason_bytes));
}

/// The largest tensor that travels with its request; 0 on one host, where data moves in no time,
/// and with a forced algorithm. Up to `small_bytes` the order class is tree in any case.
std::size_t most_contributed(int size, const Negotiator::Options& options) {
    constexpr std::size_t limit_of_all = 4096;
    const auto& hosts = options.host_of;
    const bool spans_hosts = std::ranges::adjacent_find(hosts, std::not_equal_to()) != hosts.end();
    if (!spans_hosts || options.policy.forced != Algorithm::automatic) return 0;
    return std::min(limit_of_all / static_cast<std::size_t>(size), options.policy.small_bytes);
}

}  // namespace

Negotiator::Negotiator(int rank, int size, const Options& options)
    : tree_(rank, size, options.degree, options.host_of),
      options_(options),
      most_contributed_(most_contributed(size, options)),
      names_(tree_.children()),
      attendance_(tree_.subtree(rank), options.group_ranks) {
    subtrees_[rank] = tree_.subtree(rank);
    for (const int child : tree_.children()) subtrees_[child] = tree_.subtree(child);
}

/// If the description equals the one that the name's id stands for, the id takes over the submitted
/// object: when a plan submits the same object again, a comparison of pointers is enough.
void Negotiator::submit(const Name& name, bool named, const SharedDescription& description,
                        std::shared_ptr<Submitter> submitter,
                        std::span<const std::byte> contribution) {
    auto& known = names_.row(name);
    if (known.described && are_same(known.described, description)) known.described = description;
    known.submission = {description, std::move(submitter)};
    if (finished_) return;
    const int self = tree_.rank();
    count(known, named, known.submission->description, std::span(&self, 1), contribution);
    pass_on_if_complete(known);
}

void Negotiator::shut_down(std::string_view reason, int culprit) {
    shut_down({tree_.rank(), cut(reason), culprit});
}

void Negotiator::quit(std::string_view reason, int culprit) {
    quit({tree_.rank(), cut(reason), culprit});
}

void Negotiator::join(const Name& name, std::shared_ptr<Submitter> submitter) {
    names_.row(name).submission = {nullptr, std::move(submitter)};
    join({tree_.rank(), name.text()});
}

bool Negotiator::awaits(const Name& name) const {
    const auto* known = names_.find(name);
    return known != nullptr && known->submission;
}

void Negotiator::forget_submissions() noexcept {
    entries_.clear();
    names_.for_each([](KnownName& known) { known.submission.reset(); });
}

std::vector<std::shared_ptr<Submitter>> Negotiator::take_unresolved() {
    std::vector<std::shared_ptr<Submitter>> submitters;
    names_.for_each([&](KnownName& known) {
        if (auto submission = std::exchange(known.submission, std::nullopt))
            submitters.push_back(std::move(submission->submitter));
    });
    return submitters;
}

Negotiator::Holdings Negotiator::holdings() const {
    Holdings held{
        .rounds = ready_.size(), .ids = names_.id_count(), .retired = names_.retired_count()};
    names_.for_each([&](const KnownName& known) {
        if (known.tally.is_under_way()) ++held.rounds;
        if (known.submission) ++held.submissions;
    });
    return held;
}

void Negotiator::count(KnownName& known, bool named, const SharedDescription& description,
                       std::span<const int> ranks, std::span<const std::byte> contributions) {
    known.named = named;
    known.tally.add(description, ranks);
    if (!contributions.empty() && contributions.size() <= most_contributed_ * ranks.size())
        known.tally.contribute(subtree(), ranks, contributions);
    if (known.tally.arrived > subtree().size())
        throw Error(ErrorCode::wire, fmt::format("more ranks have submitted {} than there are",
                                                 base::quote(known.name.text())));
}

/// Whether a round is under way, and every rank of the subtree has submitted, joined or shut down.
bool Negotiator::is_complete(const Tally& tally) const {
    if (!tally.is_under_way()) return false;
    const auto whole = subtree().size();
    if (!tally.reporting.empty() || tally.arrived + attendance_.most_absent() < whole) return false;
    return tally.arrived == whole || attendance_.accounts_for(tally.missing_from(subtree()));
}

void Negotiator::pass_on_if_complete(KnownName& known) {
    auto& tally = known.tally;
    if (!is_complete(tally)) return;
    for (auto& group : tally.groups)
        if (group.ranks.size() == subtree().size())
            group.ranks = subtree();  // sorting ten thousand would take 0.3 ms
        else
            std::ranges::sort(group.ranks);
    if (tally.contributed < subtree().size()) tally.contributions.clear();
    if (tree_.is_root())
        resolve(known);
    else
        report(known);
    tally.reset();
    names_.let_go(known);
}

void Negotiator::pass_on_all_complete() {
    std::vector<KnownName*> complete;
    names_.for_each([&](KnownName& known) {
        if (is_complete(known.tally)) complete.push_back(&known);
    });
    std::ranges::sort(complete, {},
                      [](const KnownName* known) -> auto& { return known->name.text(); });
    for (auto* known : complete) pass_on_if_complete(*known);
}

/// Reports to the parent: the id alone, if all ranks submitted the description that it stands for.
void Negotiator::report(const KnownName& known) {
    const auto whole = subtree().size();
    const auto& tally = known.tally;
    const auto& first = tally.groups.front();
    if (known.described && first.ranks.size() == whole &&
        are_same(first.description, known.described))
        return tell(tree_.parent(), [&](Writer& out) {
            write_ready({known.id, known.fingerprint, tally.contributions}, out);
        });
    for (const auto& group : tally.groups)
        tell(tree_.parent(), [&](Writer& out) {
            write_report(
                {.name = known.name,
                 .named = known.named,
                 .more = &group != &tally.groups.back(),
                 .description = group.description,
                 .ranks = group.ranks.size() == whole ? std::vector<int>{} : group.ranks,
                 .contributions = tally.groups.size() == 1 ? tally.contributions : Bytes{}},
                out);
        });
}

/// At the root: the request is executed or fails, on all ranks.
void Negotiator::resolve(const KnownName& known) {
    auto missing = known.tally.missing_from(subtree());
    if (auto failure =
            failure_of(known.name, known.tally, missing, attendance_, options_.group_ranks)) {
        failure->items.front().id = known.id;
        return append(std::move(*failure));
    }
    ready_.push_back({known.name, known.named, known.id, known.tally.groups.front().description,
                      std::move(missing), known.tally.contributions});
}

/// A shutdown completes tallies. It goes up behind their reports: ahead of them, the parent could
/// take a tally for complete before it has the submissions of others that have shut down, too.
void Negotiator::shut_down(const RankRecord& shutdown) {
    if (finished_ || !attendance_.shut_down(shutdown.rank, shutdown.text, shutdown.culprit)) return;
    pass_on_all_complete();
    if (!tree_.is_root()) tell_parent(RecordType::shut_down, shutdown);
}

/// Nobody waits for a rank that has joined until all have. Its record goes up behind reports, like
/// that of a shutdown.
void Negotiator::join(const RankRecord& joining) {
    if (finished_ || !attendance_.join(joining.rank, joining.text)) return;
    pass_on_all_complete();
    if (!tree_.is_root()) tell_parent(RecordType::join, joining);
}

/// The root decides which entries come before it.
void Negotiator::quit(const RankRecord& quitting) {
    if (finished_) return;
    if (!tree_.is_root()) return tell_parent(RecordType::quit, quitting);
    append({.kind = LogEntry::Kind::quit,
            .code = ErrorCode::departed,
            .culprit = quitting.culprit,
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
    if (from_child) names_.child_has_applied(from, position);
    // Records from a child are too late once the log is complete.
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
    auto* known = names_.with_id(record.id);
    const Meaning* const meaning = known != nullptr ? known : names_.retired_meaning(record.id);
    if (meaning == nullptr)
        throw Error(ErrorCode::wire, fmt::format("rank {} sent id {}, which nobody has been given",
                                                 world_rank(child), record.id));
    if (meaning->fingerprint != record.fingerprint)
        throw Error(
            ErrorCode::wire,
            fmt::format("rank {} and rank {} hold different descriptions of {}", world_rank(child),
                        world_rank(tree_.rank()), base::quote(meaning->name.text())));
    if (known == nullptr) known = &names_.row(meaning->name);
    count(*known, true, meaning->described, subtrees_.at(child), record.contributions);
    pass_on_if_complete(*known);
}

void Negotiator::receive_report(int child, Reader& in) {
    const auto& below = subtrees_.at(child);
    auto record = read_report(in, below.size(), tree_.size());
    if (record.ranks.empty()) record.ranks = below;
    check_is_below(child, record.ranks);
    auto& known = names_.row(std::string_view(record.name));
    count(known, record.named, record.description, record.ranks, record.contributions);
    auto& reporting = known.tally.reporting;
    if (record.more)
        reporting.insert(child);
    else
        reporting.erase(child);
    // This waits for groups to come, even if their ranks have shut down.
    pass_on_if_complete(known);
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
    auto entry = read_entry(in, names_, tree_.size());
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

/// At the root: appends the entries that have become due since the last call.
void Negotiator::append_due() {
    if (finished_) return;
    append_ready();
    if (auto items = names_.surplus(options_.max_ids); !items.empty())
        append({.kind = LogEntry::Kind::evict, .items = std::move(items)});
    if (auto entry = attendance_.join_entry()) append(std::move(*entry));
    if (attendance_.have_all_shut_down()) append({.kind = LogEntry::Kind::all_shut_down});
}

/// For a name that had no id when its round was complete: a later entry may have given it one, if
/// ranks that had joined have submitted it nevertheless.
std::uint32_t Negotiator::id_for(const ReadyRequest& request) {
    const auto* known = names_.find(request.name);
    if (known != nullptr && known->id != 0) return known->id;
    return request.named ? names_.new_id() : 0;
}

/// Known ids first, ascending, so that the order does not depend on arrival.
void Negotiator::append_ready() {
    const auto order_of = [](const ReadyRequest& request) {
        return request.id > 0 ? request.id : std::numeric_limits<std::uint32_t>::max();
    };
    auto ready = std::exchange(ready_, {});
    if (!std::ranges::is_sorted(ready, {}, order_of)) std::ranges::stable_sort(ready, {}, order_of);
    const FusionLimits limits{.tensor_bytes = options_.fusion_bytes,
                              .entry_bytes = Outbox::full_message_bytes};
    for (std::span<ReadyRequest> rest = ready; !rest.empty();) {
        const auto fused = rest.first(count_fused(rest, limits));
        rest = rest.subspan(fused.size());
        LogEntry entry{.policy = options_.policy,
                       .absent = std::move(fused.front().absent),
                       .contributions = std::move(fused.front().contributions)};
        entry.items.reserve(fused.size());
        for (auto& request : fused) {
            if (request.id == 0) request.id = id_for(request);
            auto& item = entry.items.emplace_back(Item{std::move(request.name), request.id});
            if (!entry.absent.empty()) item.description = std::move(request.description);
        }
        append(std::move(entry));
    }
    ready.clear();
    ready_.swap(ready);  // its memory is reused
}

void Negotiator::append(LogEntry&& entry) {
    if (entry.text.size() > max_entry_text_bytes) entry.text.resize(max_entry_text_bytes);
    pass_down(entry);
    apply(std::move(entry));
}

void Negotiator::pass_down(const LogEntry& entry) {
    for (const int child : tree_.children())
        tell(child, [&](Writer& out) {
            out.enumerator(RecordType::entry);
            write_entry(entry, names_, out);
        });
}

/// Applies the next entry, in the same way on every rank: resolves this rank's submissions, and
/// gives names their ids or takes them away.
void Negotiator::apply(LogEntry&& entry) {
    ++position_;
    if (entry.kind == LogEntry::Kind::evict) {
        for (const auto& item : entry.items) names_.retire(item, position_);
        // The parent keeps the ids until it knows that this rank has applied the entry, and this
        // rank may have nothing else to send.
        if (!tree_.is_root()) tell(tree_.parent(), [](Writer&) {});
    } else if (entry.kind == LogEntry::Kind::execute) {
        apply_execution(entry);
    } else {
        for (auto& item : entry.items) {
            auto& known = names_.row(item.name);
            take_submission(known, item);
            names_.let_go(known);
        }
    }
    if (entry.kind == LogEntry::Kind::join) attendance_.end_join();
    finished_ = finished_ || entry.kind == LogEntry::Kind::all_shut_down ||
                entry.kind == LogEntry::Kind::quit;
    entries_.push_back(std::move(entry));
}

/// A rank that has not submitted a request gets its description from the entry, if there is one.
void Negotiator::apply_execution(LogEntry& entry) {
    for (auto& item : entry.items) {
        auto& known = names_.row(item.name);
        const auto own = take_submission(known, item);
        if (own && !own->description)
            throw Error(ErrorCode::wire, fmt::format("the log executes {}, which is a join",
                                                     base::quote(item.name.text())));
        const auto& described = own ? own->description : item.description;
        if (item.id > 0 && described) names_.use(known, item.id, described, position_);
        names_.let_go(known);
    }
}

/// Takes this rank's submission of the item's name, if any, and moves its submitter to the item.
std::optional<KnownName::Submission> Negotiator::take_submission(KnownName& known, Item& item) {
    auto submission = std::exchange(known.submission, std::nullopt);
    if (submission) item.submitter = std::move(submission->submitter);
    return submission;
}

}  // namespace guozhuang::protocol
