#include "engine/stall_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "base/edit_distance.hpp"

namespace guozhuang::engine {
namespace {

using Content = base::Note::Content;

std::vector<Content> waiting_of(const base::Activity& activity) {
    std::vector<Content> waiting;
    for (const auto& place : activity.waiting)
        if (auto content = place.note.read()) waiting.push_back(std::move(*content));
    return waiting;
}

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

/// The ranks of a set, sorted by what they have to do with an operation.
struct Ranks {
    std::vector<int> waiting, unseen;  ///< of the world
    std::vector<std::pair<int, base::Neighbour>> missing;
};

class Reporter {
public:
    Reporter(const Request& request, const StallScene& scene, bool decided) : request_(request), scene_(scene), decided_(decided) {
        name_ = as_noted(request.operation(), request.name);
    }

    Ranks sort() const {
        Ranks sorted;
        for (int position = 0; position < scene_.size; ++position) {
            const int rank = scene_.members.world_rank(position);
            if (is(Request::Kind::letter) && rank != scene_.rank && rank != request_.peer) continue;
            auto neighbour = rank == scene_.rank ? std::nullopt : scene_.job.look_at(rank);
            if (rank == scene_.rank || (neighbour && waits_too(*neighbour)))
                sorted.waiting.push_back(rank);
            else if (!neighbour)
                sorted.unseen.push_back(rank);
            else if (is_needed(*neighbour))
                sorted.missing.emplace_back(rank, std::move(*neighbour));
        }
        return sorted;
    }

    /// What the missing ranks do, those together that wait for the same: "; ranks 0,1 have not submitted it and wait for allreduce 'losses': is that
    /// meant to be the same?; rank 2 has not submitted it (pid 7, stopped; after it had submitted allreduce 'grad6')".
    std::string describe(const std::vector<std::pair<int, base::Neighbour>>& missing) const {
        std::map<std::string, std::vector<int>> waiters;
        std::vector<std::string> others;
        for (const auto& [rank, neighbour] : missing) {
            const auto theirs = waiting_of(*neighbour.activity);
            if (!decided_ && !neighbour.is_stopped && !theirs.empty())
                waiters[describe(theirs)].push_back(rank);
            else
                others.push_back(fmt::format("; rank {} {} ({}; {})", rank,
                                             decided_ || has(theirs) ? "does not come forward" : "has not " + deed(), neighbour.process,
                                             base::describe(*neighbour.activity)));
        }
        std::string text;
        for (const auto& [other, ranks] : waiters)
            text += fmt::format("; {} {} not {} and {} for {}", list_ranks(ranks), ranks.size() == 1 ? "has" : "have", deed(),
                                ranks.size() == 1 ? "waits" : "wait", other);
        constexpr std::size_t most = 4;
        for (const auto& other : std::span(others).first(std::min(most, others.size()))) text += other;
        if (others.size() > most) text += fmt::format("; nor {} {} others", decided_ ? "do" : "have", others.size() - most);
        return text;
    }

    /// What it takes of every rank.
    std::string deed() const { return is(Request::Kind::closing) ? "closed" : "submitted it"; }

private:
    bool is(Request::Kind kind) const { return request_.kind == kind; }

    bool waits_too(const base::Neighbour& neighbour) const {
        return !neighbour.is_stopped && (has(waiting_of(*neighbour.activity)) || is_last_of(*neighbour.activity));
    }
    /// Who has joined is not, unless the operation has begun, or is the end of all.
    bool is_needed(const base::Neighbour& neighbour) const {
        return decided_ || neighbour.is_stopped || is(Request::Kind::closing) || !has_joined(waiting_of(*neighbour.activity));
    }

    /// The operation whose name is nearest: the wait may be about that one, unless this rank waits for it, too.
    std::string describe(const std::vector<Content>& waiting) const {
        const auto self = scene_.job.look_at(scene_.rank);
        const auto own = self ? waiting_of(*self->activity) : std::vector<Content>{};
        const auto& nearest = *std::ranges::min_element(waiting, {}, [&](const Content& other) { return distance(other.text, name_); });
        const bool is_slip = is_near(nearest.text, name_) && std::ranges::find(own, nearest.text, &Content::text) == own.end();
        return fmt::format("{} '{}'{}", nearest.kind, nearest.text, is_slip ? ": is that meant to be the same?" : "");
    }

    bool has(const std::vector<Content>& waiting) const {
        return !is(Request::Kind::letter) && std::ranges::any_of(waiting, [&](const Content& content) { return content.text == name_; });
    }
    /// What a rank writes that waits for it: long names are cut.
    std::string as_noted(std::string_view operation, const std::string& name) const {
        base::Note note;
        note.write(operation, name_among(scene_.members, name));
        return note.read().value_or(Content{}).text;
    }
    /// Whether it is what the rank has submitted last, and pending.
    bool is_last_of(const base::Activity& activity) const {
        const auto last = activity.submitted.read();
        return is(Request::Kind::collective) && activity.last_pending != nullptr && last && last->text == name_;
    }
    bool has_joined(const std::vector<Content>& waiting) const {
        return std::ranges::any_of(waiting, [&](const Content& content) {
            return content.kind == name_of(Operation::join) && content.text == as_noted(content.kind, std::string(bare(content.text)));
        });
    }

    const Request& request_;
    const StallScene& scene_;
    bool decided_;
    std::string name_;
};

std::string duration(std::chrono::milliseconds age) {
    const double seconds = static_cast<double>(age.count()) / 1000;
    return fmt::format("{:.{}f} s", seconds, seconds < 1 ? 3 : seconds < 100 ? 1 : 0);
}

}  // namespace

StallReport report_stall(const Stalled& stalled, const StallScene& scene, bool decided) {
    const auto& request = stalled.pending->request();
    const auto& members = scene.members;
    const Reporter reporter(request, scene, decided);
    const auto [waiting, unseen, missing] = reporter.sort();
    StallReport report{.text = {}, .missing = {}, .is_first = waiting.front() == scene.rank};
    report.text = fmt::format("{}{} {} {} on {}", request.label(), members.are_the_world() ? "" : " in " + members.name(),
                              stalled.give_up ? "is given up after" : "has been waiting for", duration(stalled.age), list_ranks(waiting));
    report.text += reporter.describe(missing);
    if (!unseen.empty())
        report.text += fmt::format("; whether {} {} {} cannot be seen from here", list_ranks(unseen), unseen.size() == 1 ? "has" : "have",
                                   reporter.deed());
    if (missing.empty() && unseen.empty()) report.text += decided ? "; all take part" : "; all have " + reporter.deed();
    for (const auto& [world_rank, neighbour] : missing)
        if (const auto position = members.position_of(world_rank)) report.missing.push_back(*position);
    return report;
}

}  // namespace guozhuang::engine
