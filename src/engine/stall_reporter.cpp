#include "engine/stall_reporter.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "engine/submission_queue.hpp"

namespace guozhuang::engine {
namespace {

constexpr std::size_t most_said = 4;  // at one look

}  // namespace

void StallReporter::look(Requests pending,
                         const std::function<Progress(const Pending&)>& progress_of) {
    const auto now = base::Clock::now();
    SetSnapshot set_snapshot(context_.group_ranks, context_.size, context_.rank, *context_.job);
    std::size_t said = 0;
    for (const auto& stalled : watch_.look(pending, now))
        said += report(stalled, progress_of(*stalled.pending), set_snapshot, said) ? 1 : 0;
    bool is_awaited = said > 0;
    {
        const base::Lock lock(mutex_);
        is_awaited = is_awaited || !to_release_.empty();
        if (said > most_said)
            warnings_.push_back(
                fmt::format("{} more operations have been waiting as long", said - most_said));
        for (auto& each : pending) to_release_.insert(std::move(each));
        has_warnings_ = true;
    }
    // This thread may be in the middle of an operation, and may have been at the last look, too:
    // then another thread logs the warnings and releases the operations that were looked at.
    if (is_awaited) context_.ring(base::Sleepers::idle);
}

/// Returns whether there is something to warn of; warns unless enough has been said at this look.
/// Leaves an operation to the next look if other hosts have yet to answer. Aborts the job for an
/// operation at its limit if some rank has not submitted it, is stopped, or cannot be seen from
/// here. A join may take as long as other ranks have data, so only a rank counts for it
/// that is stopped, or does not answer, for as long as the limit; the closing has no limit.
bool StallReporter::report(const Stalled& stalled, const Progress& progress,
                           SetSnapshot& set_snapshot, std::size_t said) {
    const auto& request = stalled.pending->request();
    const bool is_collective = request.kind == Request::Kind::collective,
               is_open = is_collective && !progress.is_resolved;
    const bool is_join = is_collective && request.description->operation == OperationKind::join;
    const StallReport report(stalled, is_collective && !is_open, set_snapshot);
    if (!report.is_complete()) {
        if (stalled.warn) watch_.repeat(stalled);
        return false;
    }
    const bool is_over = stalled.limit.count() > 0 && request.kind != Request::Kind::closing &&
                         (!is_join || watch_.has_lasted(stalled, report.has_stopped()));
    if (is_join && !report.has_stopped()) return false;
    const bool is_unmet = is_open ? report.has_culprits() : progress.is_unmatched;
    if (is_over && (is_unmet || report.has_stopped() || report.has_unseen()))
        context_.job->abort(
            {.rank = report.culprit(), .text = report.text(), .code = ErrorCode::timeout});
    if (!stalled.warn || !report.is_first()) return false;
    if (said >= most_said) return true;
    auto text = report.text();
    const base::Lock lock(mutex_);
    warnings_.push_back(std::move(text));
    return true;
}

void StallReporter::log_warnings() noexcept {
    if (!has_warnings_.exchange(false)) return;
    std::vector<std::string> texts;
    std::unordered_set<std::shared_ptr<Pending>> to_release;
    {
        const base::Lock lock(mutex_);
        texts.swap(warnings_);
        to_release.swap(to_release_);
    }
    for (const auto& text : texts) base::log_warning(text);
}

}  // namespace guozhuang::engine
