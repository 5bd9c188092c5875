#include "engine/stall_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace guozhuang::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto most_between_looks = 100ms;

/// A small part of the shortest limit.
std::chrono::milliseconds between_looks(const StallSettings& settings) {
    auto result = most_between_looks;
    for (const auto limit : {settings.warn, settings.error})
        if (limit > 0ms) result = std::min(result, limit / 8);
    return std::max(result, 1ms);
}

}  // namespace

StallWatch::StallWatch(const StallSettings& settings, const protocol::Members& members,
                       trace::Activity& own)
    : settings_(settings), members_(members), own_(own), between_looks_(between_looks(settings)) {}

std::vector<Stalled> StallWatch::look(const std::vector<std::shared_ptr<Pending>>& pending,
                                      base::Clock::time_point now) {
    ++looks_;
    next_look_ = now + between_looks_;
    std::vector<Stalled> stalled;
    std::int64_t untold = 0;
    for (const auto& each : pending) {
        const auto& request = each->request();
        const auto [sighting, is_new] = sightings_.try_emplace(each);
        auto& seen = sighting->second;
        if (is_new) {
            const auto since = std::min(now, request.submitted);
            seen = {.since = since,
                    .next_warning = now + settings_.warn,
                    .deadline = deadline_of(request, since)};
        }
        seen.look = looks_;
        if (!publish(*each)) ++untold;
        const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - seen.since);
        const bool warn = settings_.warn > 0ms && now >= seen.next_warning,
                   is_over = now >= seen.deadline;
        if (warn) seen.next_warning = now + age;
        if (!is_over) expect(seen.deadline);
        const auto limit =
            std::chrono::duration_cast<std::chrono::milliseconds>(seen.deadline - seen.since);
        if (warn || is_over) stalled.push_back({each, age, warn, is_over ? limit : 0ms});
    }
    tell_untold(untold);
    std::erase_if(sightings_, [&](const auto& sighting) { return sighting.second.look != looks_; });
    return stalled;
}

base::Deadline StallWatch::deadline_of(const Request& request,
                                       base::Clock::time_point since) const {
    if (request.deadline != base::no_deadline) return request.deadline;
    return settings_.error > 0ms ? since + settings_.error : base::no_deadline;
}

bool StallWatch::publish(Pending& pending) {
    if (pending.is_published()) return true;
    auto* const place = trace::take_place(own_);
    if (place == nullptr) return false;
    place->note.write(pending.request().operation(), name_among(members_, pending.request().name));
    pending.set_published(place);
    return true;
}

std::string name_among(const protocol::Members& members, const std::string& name) {
    return members.are_the_world() ? name : fmt::format("{} in {}", name, members.name());
}

}  // namespace guozhuang::engine
