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

/// Called by whoever drives and has nothing to do. What there is to say somebody else may have to
/// say: this thread may be in the middle of a bundle.
void Engine::notice_stalls() {
    if (!stalls_.is_due(base::a_moment_ago())) return;
    const auto now = base::Clock::now();
    Requests pending;
    {
        const base::Lock lock(queue_mutex_);
        for (const auto& [name, each] : pending_) pending.push_back(each);
        std::ranges::copy_if(pending_nameless_, std::back_inserter(pending), [](const auto& each) {
            return each->request().kind != Request::Kind::stand_in;
        });
    }
    StallScene scene(members_, control_.size(), rank_, *job_);
    std::size_t said = 0;
    for (const auto& stalled : stalls_.look(pending, now))
        said += report_stall(stalled, scene, said) ? 1 : 0;
    {
        const base::Lock lock(queue_mutex_);
        if (said > most_said)
            to_say_.push_back(
                fmt::format("{} more operations have been waiting as long", said - most_said));
        for (auto& each : pending) looked_at_.insert(std::move(each));
        has_to_say_ = true;
    }
    base::ring_local(doorbell_, wait_.audience);
}

/// Returns whether there is something to warn of; warns unless enough has been said.
/// An operation at its limit ends the job if some rank has not submitted it, is stopped, or cannot
/// be seen from here (on another host, where it may be dead or stopped). All
/// waits then throw that cause, the one of this thread at its next look. A join may take as long as
/// others have data, so only a stopped rank matters to it; closing has no limit.
bool Engine::report_stall(const Stalled& stalled, StallScene& scene, std::size_t said) {
    const auto& request = stalled.pending->request();
    const bool is_collective = request.kind == Request::Kind::collective,
               is_open = is_collective && open_.contains(request.name);
    const bool is_join =
        is_collective && request.description->operation == protocol::OperationKind::join;
    const StallReport report(request, is_collective && !is_open, scene);
    if (is_join && !report.has_stopped()) return false;
    const bool is_unmet =
        is_open ? report.has_culprits() : point_to_point_.is_unmatched(*stalled.pending);
    if (stalled.limit.count() > 0 && request.kind != Request::Kind::closing &&
        (is_unmet || report.has_stopped() || report.has_unseen()))
        job_->abort(
            {.rank = report.culprit(), .text = report.text(stalled), .code = ErrorCode::timeout});
    if (!stalled.warn || !report.is_first()) return false;
    if (said >= most_said) return true;
    auto text = report.text(stalled);
    const base::Lock lock(queue_mutex_);
    to_say_.push_back(std::move(text));
    return true;
}

/// Log callbacks and what a request keeps alive are the user's code, so no lock is held.
void Engine::say() noexcept {
    if (!has_to_say_.exchange(false)) return;
    std::vector<std::string> texts;
    std::unordered_set<std::shared_ptr<Pending>> looked_at;
    {
        const base::Lock lock(queue_mutex_);
        texts.swap(to_say_);
        looked_at.swap(looked_at_);
    }
    for (const auto& text : texts) base::log_warning(text);
}

}  // namespace guozhuang::engine
