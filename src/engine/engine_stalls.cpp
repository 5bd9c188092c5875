// What an engine does about operations that do not come forward.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "engine/engine.hpp"
#include "engine/stall_report.hpp"

namespace guozhuang::engine {
namespace {

constexpr std::size_t most_said = 4;  // at one look

}  // namespace

/// Called by whoever drives and has nothing to do.
void Engine::notice_stalls() {
    const auto now = base::Clock::now();
    if (!stalls_.is_due(now)) return;
    Requests pending;
    {
        const base::Lock lock(queue_mutex_);
        for (const auto& [name, each] : pending_) pending.push_back(each);
        std::ranges::copy_if(pending_nameless_, std::back_inserter(pending),
                             [](const auto& each) { return each->request().kind != Request::Kind::stand_in; });
    }
    std::size_t said = 0;
    for (const auto& stalled : stalls_.look(pending, now)) said += treat(stalled, said) ? 1 : 0;
    const base::Lock lock(queue_mutex_);
    if (said > most_said) to_say_.push_back(fmt::format("{} more operations have been waiting as long", said - most_said));
    std::ranges::move(pending, std::back_inserter(looked_at_));
    has_to_say_ = true;
}

/// Whether there was something to say, which is said unless enough has been.
bool Engine::treat(Stalled stalled, std::size_t said) {
    const auto& request = stalled.pending->request();
    const bool is_collective = request.kind == Request::Kind::collective, is_open = is_collective && open_.contains(request.name);
    stalled.give_up = stalled.give_up && is_open;
    if (!stalled.warn && !stalled.give_up) return false;
    const auto report =
        report_stall(stalled, {.members = members_, .size = control_.size(), .rank = rank_, .job = *job_}, is_collective && !is_open);
    if (stalled.give_up) negotiator_.withdraw(request.name, report.text, report.missing);
    if (!stalled.warn || !report.is_first) return false;
    const base::Lock lock(queue_mutex_);
    if (said < most_said) to_say_.push_back(report.text);
    return true;
}

/// Log callbacks and what a request keeps alive are the user's code, so no lock is held.
void Engine::say() noexcept {
    if (!has_to_say_.exchange(false)) return;
    std::vector<std::string> texts;
    Requests looked_at;
    {
        const base::Lock lock(queue_mutex_);
        texts.swap(to_say_);
        looked_at.swap(looked_at_);
    }
    for (const auto& text : texts) base::log_warning(text);
}

}  // namespace guozhuang::engine
