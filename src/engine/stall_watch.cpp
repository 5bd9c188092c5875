#include "engine/stall_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/pending.hpp"

namespace guozhuang::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto most_between_looks = 100ms;

/// An eighth of the shortest limit, and at most `most_between_looks`.
std::chrono::milliseconds between_looks(const StallLimits& limits) {
    auto result = most_between_looks;
    for (const auto limit : {limits.warn, limits.error})
        if (limit > 0ms) result = std::min(result, limit / 8);
    return std::max(result, 1ms);
}

}  // namespace

StallWatch::StallWatch(const StallLimits& limits, const protocol::GroupRanks& group_ranks,
                       trace::Activity& own)
    : limits_(limits),
      group_ranks_(group_ranks),
      own_(own),
      between_looks_(between_looks(limits)) {}

std::vector<Stalled> StallWatch::look(const std::vector<std::shared_ptr<Pending>>& pending,
                                      base::Clock::time_point now) {
    ++looks_;
    next_look_ = now + between_looks_;
    std::vector<Stalled> stalled;
    std::int64_t unlisted = 0;
    for (const auto& each : pending) {
        const auto& request = each->request();
        const auto [entry, is_new] = observations_.try_emplace(each);
        auto& seen = entry->second;
        if (is_new) {
            const auto since = std::min(now, request.submitted);
            seen = {.since = since,
                    .next_warning = now + limits_.warn,
                    .deadline = deadline_of(request, since)};
        }
        seen.look = looks_;
        if (!publish(*each)) ++unlisted;
        const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - seen.since);
        const bool warn = limits_.warn > 0ms && now >= seen.next_warning,
                   is_over = now >= seen.deadline;
        if (warn) seen.next_warning = now + age;
        if (!is_over) expect(seen.deadline);
        const auto limit =
            std::chrono::duration_cast<std::chrono::milliseconds>(seen.deadline - seen.since);
        if (warn || is_over) stalled.push_back({each, age, warn, is_over ? limit : 0ms});
    }
    publish_unlisted(unlisted);
    std::erase_if(observations_, [&](const auto& entry) { return entry.second.look != looks_; });
    return stalled;
}

bool StallWatch::has_lasted(const Stalled& stalled, bool holds) {
    auto& since = observations_[stalled.pending].held_up;
    const auto now = base::Clock::now();
    since = holds ? std::min(since, now) : base::no_deadline;
    return holds && now - since >= stalled.limit;
}

base::Deadline StallWatch::deadline_of(const Request& request,
                                       base::Clock::time_point since) const {
    if (request.deadline != base::no_deadline) return request.deadline;
    return limits_.error > 0ms ? since + limits_.error : base::no_deadline;
}

bool StallWatch::publish(Pending& pending) {
    if (pending.is_published()) return true;
    auto* const slot = trace::take_slot(own_);
    if (slot == nullptr) return false;
    write_operation(slot->note, pending.request().operation(), pending.request().name.text(),
                    group_ranks_);
    pending.set_published(slot);
    return true;
}

void write_operation(trace::Note& note, std::string_view operation, std::string_view name,
                     const protocol::GroupRanks& group_ranks) {
    if (group_ranks.are_the_world())
        note.write(operation, name);
    else
        note.write(operation, fmt::format("{} in {}", name, group_ranks.name()));
}

}  // namespace guozhuang::engine
