#include "engine/stall_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/edit_distance.hpp"
#include "base/error_text.hpp"

namespace guozhuang::engine {
namespace {

using namespace std::chrono_literals;
using Content = trace::Note::Content;
constexpr std::string_view point_to_point_kind = "send/recv";  // as Request::operation() says

/// The name without the process set.
std::string_view bare(std::string_view name) {
    return name.substr(0, name.rfind(" in process set "));
}

/// The edit distance of the names without their process sets.
std::size_t distance(std::string_view a, std::string_view b) {
    return base::edit_distance(bare(a), bare(b));
}

/// Whether one name may be the other one mistyped, or in another process set.
bool is_near(std::string_view a, std::string_view b) {
    return distance(a, b) * 3 <= std::max(bare(a).size(), bare(b).size());
}

/// The name as a rank publishes it while it waits: long names are cut.
std::string as_noted(std::string_view operation, const std::string& name,
                     const protocol::GroupRanks& group_ranks) {
    trace::Note note;
    write_operation(note, operation, name, group_ranks);
    return note.read().value_or(Content{}).text;
}

std::string duration(std::chrono::milliseconds age) {
    const double seconds = static_cast<double>(age.count()) / 1000;
    return fmt::format("{:.{}f} s", seconds, seconds < 1 ? 3 : seconds < 100 ? 1 : 0);
}

std::string_view has_or_have(std::span<const int> ranks) {
    return ranks.size() == 1 ? "has" : "have";
}

}  // namespace

const std::optional<trace::RankStatus>& SetSnapshot::at(int rank) {
    const auto [status, is_new] = statuses_.try_emplace(rank);
    if (is_new) status->second = job_.look_at(rank);
    return status->second;
}

StallReport::StallReport(const Stalled& stalled, bool decided, SetSnapshot& set_snapshot)
    : stalled_(stalled),
      request_(stalled.pending->request()),
      decided_(decided),
      set_snapshot_(set_snapshot),
      name_(as_noted(request_.operation(), request_.name, set_snapshot.group_ranks())) {
    for (int group_rank = 0; group_rank < set_snapshot.size(); ++group_rank) {
        const int rank = set_snapshot.group_ranks().world_rank(group_rank);
        if (is(Request::Kind::point_to_point) && rank != set_snapshot.rank() &&
            rank != set_snapshot.group_ranks().world_rank(request_.route.peer))
            continue;
        const auto& status = set_snapshot.at(rank);
        if (rank == set_snapshot.rank() || (status && waits_too(*status))) {
            waiting_.push_back(rank);
            is_complete_ |= !is_first() && stalled.limit == 0ms;  // the first one reports it
            if (!is_first() && stalled.limit == 0ms) return;
        } else if (!status)
            unseen_.push_back(rank);
        else if (status->is_awaited)
            is_complete_ = false;
        else if (status->process.empty())
            silent_.push_back(rank);
        else if (is_needed(*status))
            (status->is_crowded && !status->is_stopped ? unseen_ : missing_).push_back(rank);
    }
    // A rank that runs may have done its part of an operation that is under way.
    if (decided_ && (has_stopped() || has_unseen()))
        std::erase_if(missing_, [&](int rank) { return !set_snapshot.at(rank)->is_stopped; });
}

bool StallReport::waits_too(const trace::RankStatus& status) const {
    return !status.is_stopped && !is(Request::Kind::point_to_point) && has_submitted(status);
}

bool StallReport::has_submitted(const trace::RankStatus& status) const {
    return std::ranges::find(status.waiting, name_, &Content::text) != status.waiting.end() ||
           (is(Request::Kind::collective) && status.last && status.last->text == name_);
}

bool StallReport::has_joined(const trace::RankStatus& status) const {
    const auto is_join = [&](const Content& content) {
        return content.kind == name_of(OperationKind::join) &&
               content.text == as_noted(content.kind, std::string(bare(content.text)),
                                        set_snapshot_.group_ranks());
    };
    return std::ranges::any_of(status.waiting, is_join) || (status.last && is_join(*status.last));
}

/// A joined rank is not needed, unless the operation has begun, or is the closing. Nor then is one
/// that has more operations than it can say.
bool StallReport::is_needed(const trace::RankStatus& status) const {
    if (status.is_stopped) return true;
    if (decided_) return !status.is_crowded;
    return is(Request::Kind::closing) || !has_joined(status);
}

std::optional<int> StallReport::stopped() const {
    const auto found = std::ranges::find_if(
        missing_, [this](int rank) { return set_snapshot_.at(rank)->is_stopped; });
    if (found != missing_.end()) return *found;
    return silent_.empty() ? std::nullopt : std::optional(silent_.front());
}

int StallReport::culprit() const {
    if (const auto rank = stopped()) return *rank;
    for (const auto* ranks : {&missing_, &unseen_})
        if (!ranks->empty()) return ranks->front();
    return set_snapshot_.rank();
}

std::string StallReport::text() const {
    const auto& group_ranks = set_snapshot_.group_ranks();
    auto text = fmt::format(
        "{}{} has been waiting for {}{} on {}", request_.label(),
        group_ranks.are_the_world() ? "" : " in " + group_ranks.name(), duration(stalled_.age),
        stalled_.limit > 0ms ? fmt::format(" (its limit is {})", duration(stalled_.limit)) : "",
        base::list_ranks(waiting_));
    text += culprits();
    if (!silent_.empty())
        text += fmt::format("; {} {} not answer", base::list_ranks(silent_),
                            silent_.size() == 1 ? "does" : "do");
    if (!unseen_.empty())
        text += fmt::format("; whether {} {} {} cannot be seen from here",
                            base::list_ranks(unseen_), has_or_have(unseen_), deed());
    if (!has_culprits() && !is(Request::Kind::point_to_point))
        text += decided_ ? "; all take part" : "; all have " + deed();
    return text;
}

/// Says what the missing ranks are doing, and groups ranks that wait for the same operation: ";
/// ranks 0,1 have not submitted it and wait for allreduce 'losses': is that meant to be the same?;
/// rank 2 has not submitted it (pid 7, stopped; after it had submitted allreduce 'grad6')".
std::string StallReport::culprits() const {
    std::map<std::string, std::vector<int>> waiters;
    std::vector<std::string> others;
    for (const int rank : missing_) {
        const auto& status = *set_snapshot_.at(rank);
        const bool takes_part = decided_ || (status.is_stopped && has_submitted(status));
        if (!takes_part && !status.is_stopped && !status.waiting.empty())
            waiters[nearest(status.waiting)].push_back(rank);
        else
            others.push_back(fmt::format("; rank {} {} ({}; {})", rank,
                                         takes_part ? "does not come forward" : "has not " + deed(),
                                         status.process, status.doing));
    }
    std::string text;
    for (const auto& [other, ranks] : waiters)
        text +=
            fmt::format("; {} {} not {} and {} for {}", base::list_ranks(ranks), has_or_have(ranks),
                        deed(), ranks.size() == 1 ? "waits" : "wait", other);
    constexpr std::size_t most = 4;
    for (const auto& other : std::span(others).first(std::min(most, others.size()))) text += other;
    if (others.size() > most)
        text += fmt::format("; nor {} {} others", decided_ ? "do" : "have", others.size() - most);
    return text;
}

/// Describes one of the operations that another rank waits for. For a send or receive: the opposite
/// one, since each may hold up the other, or otherwise the first. For others: the one with the
/// nearest name; if the names are similar and this rank does not wait for it too, the text asks
/// whether they are meant to be the same.
std::string StallReport::nearest(const std::vector<Content>& waiting) const {
    const auto in_words = [](const Content& content) {
        return content.kind == point_to_point_kind
                   ? content.text
                   : fmt::format("{} '{}'", content.kind, content.text);
    };
    if (is(Request::Kind::point_to_point)) {
        const bool sends = request_.route.sending;
        const auto facing =
            fmt::format("{} {}", sends ? "send to" : "recv from", set_snapshot_.rank());
        const auto found = std::ranges::find(
            waiting, as_noted(point_to_point_kind, facing, set_snapshot_.group_ranks()),
            &Content::text);
        if (found == waiting.end()) return in_words(waiting.front());
        return in_words(*found) + (sends ? ": where both send first, neither receives; use "
                                           "send_async, or let one of them receive first"
                                         : ": where both receive first, neither sends; let one of "
                                           "them send first, or use recv_async");
    }
    const auto& nearest = *std::ranges::min_element(
        waiting, {}, [&](const Content& other) { return distance(other.text, name_); });
    const auto& self = set_snapshot_.at(set_snapshot_.rank());
    const bool is_own = self && std::ranges::find(self->waiting, nearest.text, &Content::text) !=
                                    self->waiting.end();
    return in_words(nearest) +
           (is_near(nearest.text, name_) && !is_own ? ": is that meant to be the same?" : "");
}

}  // namespace guozhuang::engine
