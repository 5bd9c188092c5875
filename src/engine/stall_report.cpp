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
constexpr std::string_view letter_kind = "send/recv";  // as Request::operation() says

/// The name without the process set.
std::string_view bare(std::string_view name) {
    return name.substr(0, name.rfind(" in process set "));
}

/// How far the names are from each other, whatever their process sets.
std::size_t distance(std::string_view a, std::string_view b) {
    return base::edit_distance(bare(a), bare(b));
}

/// Whether one of the names may be the other, mistyped or in another process set.
bool is_near(std::string_view a, std::string_view b) {
    return distance(a, b) * 3 <= std::max(bare(a).size(), bare(b).size());
}

/// What a rank publishes that waits for it: long names are cut.
std::string as_noted(std::string_view operation, const std::string& name,
                     const protocol::Members& members) {
    trace::Note note;
    note.write(operation, name_among(members, name));
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

const std::optional<StallScene::Sight>& StallScene::at(int rank) {
    const auto [sight, is_new] = sights_.try_emplace(rank);
    if (is_new) sight->second = look_at(rank);
    return sight->second;
}

std::optional<StallScene::Sight> StallScene::look_at(int rank) const {
    auto neighbour = job_.look_at(rank);
    if (!neighbour) return std::nullopt;
    const auto& activity = *neighbour->activity;
    Sight sight{.neighbour = std::move(*neighbour), .waiting = {}, .last = {}};
    sight.is_crowded = activity.untold > 0;
    for (const auto& place : activity.waiting)
        if (auto content = place.note.read()) sight.waiting.push_back(std::move(*content));
    if (activity.last_pending != nullptr) sight.last = activity.submitted.read();
    const auto is_join = [&](const Content& content) {
        return content.kind == name_of(protocol::OperationKind::join) &&
               content.text == as_noted(content.kind, std::string(bare(content.text)), members_);
    };
    sight.has_joined =
        std::ranges::any_of(sight.waiting, is_join) || (sight.last && is_join(*sight.last));
    return sight;
}

StallReport::StallReport(const Request& request, bool decided, StallScene& scene)
    : request_(request),
      decided_(decided),
      scene_(scene),
      name_(as_noted(request.operation(), request.name, scene.members())) {
    for (int position = 0; position < scene.size(); ++position) {
        const int rank = scene.members().world_rank(position);
        if (is(Request::Kind::letter) && rank != scene.rank() && rank != request.peer) continue;
        const auto& sight = scene.at(rank);
        if (rank == scene.rank() || (sight && waits_too(*sight)))
            waiting_.push_back(rank);
        else if (!sight)
            unseen_.push_back(rank);
        else if (is_needed(*sight))
            (sight->is_crowded && !sight->neighbour.is_stopped ? unseen_ : missing_)
                .push_back(rank);
    }
}

bool StallReport::waits_too(const StallScene::Sight& sight) const {
    return !sight.neighbour.is_stopped && !is(Request::Kind::letter) && has_submitted(sight);
}

bool StallReport::has_submitted(const StallScene::Sight& sight) const {
    return std::ranges::find(sight.waiting, name_, &Content::text) != sight.waiting.end() ||
           (is(Request::Kind::collective) && sight.last && sight.last->text == name_);
}

/// Who has joined is not, unless the operation has begun, or is the end of all.
bool StallReport::is_needed(const StallScene::Sight& sight) const {
    return decided_ || sight.neighbour.is_stopped || is(Request::Kind::closing) ||
           !sight.has_joined;
}

bool StallReport::has_stopped() const {
    return std::ranges::any_of(missing_,
                               [this](int rank) { return scene_.at(rank)->neighbour.is_stopped; });
}

int StallReport::culprit() const {
    return !missing_.empty()  ? missing_.front()
           : !unseen_.empty() ? unseen_.front()
                              : scene_.rank();
}

std::string StallReport::text(const Stalled& stalled) const {
    const auto& members = scene_.members();
    auto text = fmt::format(
        "{}{} has been waiting for {}{} on {}", request_.label(),
        members.are_the_world() ? "" : " in " + members.name(), duration(stalled.age),
        stalled.limit > 0ms ? fmt::format(" (its limit is {})", duration(stalled.limit)) : "",
        base::list_ranks(waiting_));
    text += culprits();
    if (!unseen_.empty())
        text += fmt::format("; whether {} {} {} cannot be seen from here",
                            base::list_ranks(unseen_), has_or_have(unseen_), deed());
    if (!has_culprits() && !is(Request::Kind::letter))
        text += decided_ ? "; all take part" : "; all have " + deed();
    return text;
}

/// What the missing ranks do, those together that wait for the same: "; ranks 0,1 have not
/// submitted it and wait for allreduce 'losses': is that meant to be the same?; rank 2 has not
/// submitted it (pid 7, stopped; after it had submitted allreduce 'grad6')".
std::string StallReport::culprits() const {
    std::map<std::string, std::vector<int>> waiters;
    std::vector<std::string> others;
    for (const int rank : missing_) {
        const auto& sight = *scene_.at(rank);
        const bool is_stopped = sight.neighbour.is_stopped;
        const bool takes_part = decided_ || (is_stopped && has_submitted(sight));
        if (!takes_part && !is_stopped && !sight.waiting.empty())
            waiters[nearest(sight.waiting)].push_back(rank);
        else
            others.push_back(fmt::format("; rank {} {} ({}; {})", rank,
                                         takes_part ? "does not come forward" : "has not " + deed(),
                                         sight.neighbour.process,
                                         trace::describe(*sight.neighbour.activity)));
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

/// The operation whose name is nearest: the wait may be about that one, unless this rank waits for
/// it, too. A send or receive that faces this one is nearer: its name is nobody's slip, but each of
/// them may hold up the other.
std::string StallReport::nearest(const std::vector<Content>& waiting) const {
    const auto in_words = [](const Content& content) {
        return content.kind == letter_kind ? content.text
                                           : fmt::format("{} '{}'", content.kind, content.text);
    };
    if (is(Request::Kind::letter)) {
        const bool sends = request_.name.starts_with("send");
        const auto facing = fmt::format("{} {}", sends ? "send to" : "recv from", scene_.rank());
        const auto found = std::ranges::find(
            waiting, as_noted(letter_kind, facing, scene_.members()), &Content::text);
        if (found == waiting.end()) return in_words(waiting.front());
        return in_words(*found) + (sends ? ": where both send first, neither receives; use "
                                           "send_async, or let one of them receive first"
                                         : ": where both receive first, neither sends; let one of "
                                           "them send first, or use recv_async");
    }
    const auto& nearest = *std::ranges::min_element(
        waiting, {}, [&](const Content& other) { return distance(other.text, name_); });
    const auto& self = scene_.at(scene_.rank());
    const bool is_own = self && std::ranges::find(self->waiting, nearest.text, &Content::text) !=
                                    self->waiting.end();
    return in_words(nearest) +
           (is_near(nearest.text, name_) && !is_own ? ": is that meant to be the same?" : "");
}

}  // namespace guozhuang::engine
