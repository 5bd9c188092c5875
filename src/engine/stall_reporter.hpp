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
#include "engine/submission_queue.hpp"

namespace guozhuang::engine {

/// Warns of operations that do not come forward, and ends the job for those at their limit. Whoever
/// drives looks; what there is to say somebody else may have to say, since whoever drives may be in
/// the middle of a bundle.
class StallReporter {
public:
    /// How far an operation has got.
    struct Progress {
        bool is_resolved = false;   ///< the log has it
        bool is_unmatched = false;  ///< of point to point: its peer has not submitted its half
    };

    StallReporter(const StallLimits& limits, const Context& context)
        : context_(context), watch_(limits, context.group_ranks, context.activity) {}

    /// As StallWatch::expect(); by whoever drives.
    void expect(base::Deadline deadline) noexcept { watch_.expect(deadline); }
    bool is_due() const noexcept { return watch_.is_due(base::coarse_now()); }
    /// Looks at all that is pending; by whoever drives.
    void look(Requests pending, const std::function<Progress(const Pending&)>& progress_of);

    /// Logs what the looks have found. Log callbacks and what a request keeps alive are the user's
    /// code: never with a lock held. Thread-safe.
    void log_warnings() noexcept;

private:
    bool report(const Stalled& stalled, const Progress& progress, SetSnapshot& set_snapshot,
                std::size_t said);

    const Context& context_;
    StallWatch watch_;
    base::Mutex mutex_;
    std::vector<std::string> warnings_ GUOZHUANG_GUARDED_BY(mutex_);  ///< warnings
    /// to be let go without a lock
    std::unordered_set<std::shared_ptr<Pending>> to_release_ GUOZHUANG_GUARDED_BY(mutex_);
    std::atomic<bool> has_warnings_{false};
};

}  // namespace guozhuang::engine
