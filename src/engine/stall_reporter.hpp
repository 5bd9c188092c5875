#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "engine/context.hpp"
#include "engine/pending.hpp"
#include "engine/stall_report.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {

class SubmissionQueue;

/// Warns of overdue operations, and aborts the job for one at its limit. The thread that drives
/// calls look(), perhaps in the middle of a bundle, where it must not run user code; any thread
/// that may run user code calls log_warnings().
class StallReporter {
public:
    /// How far an operation has got.
    struct Progress {
        bool is_resolved = false;   ///< the log has it
        bool is_unmatched = false;  ///< a send or receive whose peer has not submitted its half
    };

    StallReporter(const StallLimits& limits, const Context& context)
        : context_(context), watch_(limits, context.group_ranks, context.activity) {}

    /// See StallWatch::expect(). Called by the thread that drives.
    void expect(base::Deadline deadline) noexcept { watch_.expect(deadline); }
    bool is_due() const noexcept { return watch_.is_due(base::coarse_now()); }
    /// Looks at all operations that are pending. Called by the thread that drives.
    void look(Requests pending, const std::function<Progress(const Pending&)>& progress_of);

    /// Logs what look() has found. Never with a lock held: it runs user code (log callbacks, and
    /// destructors of what requests keep alive). Thread-safe.
    void log_warnings() noexcept;

private:
    bool report(const Stalled& stalled, const Progress& progress, SetSnapshot& set_snapshot,
                std::size_t said);

    const Context& context_;
    StallWatch watch_;
    base::Mutex mutex_;
    std::vector<std::string> warnings_ GUOZHUANG_GUARDED_BY(mutex_);  ///< not yet logged
    /// Operations that look() held; released without a lock.
    std::unordered_set<std::shared_ptr<Pending>> to_release_ GUOZHUANG_GUARDED_BY(mutex_);
    std::atomic<bool> has_warnings_{false};
};

}  // namespace guozhuang::engine
