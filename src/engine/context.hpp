#pragma once

#include <memory>
#include <string>

#include "base/wait.hpp"
#include "engine/control.hpp"
#include "protocol/group_ranks.hpp"
#include "trace/activity.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::engine {

/// Identifies this rank in a process set, and refers to what the rank's process sets share. The
/// doorbell lives as long as `job` is held: callers may still wait at it when the session is gone.
/// All process sets of the rank share the timeline.
struct Context {
    std::shared_ptr<JobControl> job;
    std::shared_ptr<trace::Timeline> timeline;
    protocol::GroupRanks group_ranks;
    int rank = 0;  ///< of the world
    int size = 1;  ///< of the process set
    base::Doorbell& doorbell;
    trace::Activity& activity;  ///< lives as long as the doorbell
    base::WaitSettings wait;
    /// The set's name, for the timeline; null for the world.
    std::shared_ptr<const std::string> set = nullptr;

    /// Rings this rank's doorbell for the threads that wait for this set; see base::ring().
    void ring(base::Sleepers up_to) const noexcept { base::ring(doorbell, up_to, wait.audience); }
};

}  // namespace guozhuang::engine
