#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/wait.hpp"
#include "engine/pending.hpp"
#include "protocol/group_ranks.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

/// How long an operation may be pending before it is spoken of, and before it ends the job.
struct StallLimits {
    std::chrono::milliseconds warn{10'000};  ///< 0: never
    std::chrono::milliseconds error{0};      ///< 0: never; operations may have a limit of their own
};

/// An operation that is pending for too long.
struct Stalled {
    std::shared_ptr<Pending> pending;
    std::chrono::milliseconds age{};
    bool warn = false;
    std::chrono::milliseconds limit{0};  ///< that it has reached; 0: none
};

/// Looks now and then at what is pending, so that an operation on its usual way costs nothing, and
/// publishes in the rank's activity what has been for a while. Not thread-safe: the engine's lock
/// guards it.
class StallWatch {
public:
    /// `own`: this rank's; lives longer.
    StallWatch(const StallLimits& limits, const protocol::GroupRanks& group_ranks,
               trace::Activity& own);
    ~StallWatch() { publish_unlisted(0); }
    StallWatch(const StallWatch&) = delete;
    StallWatch& operator=(const StallWatch&) = delete;

    /// An operation with a limit of its own is pending from now on.
    void expect(base::Deadline deadline) noexcept { next_look_ = std::min(next_look_, deadline); }
    bool is_due(base::Clock::time_point now) const noexcept { return now >= next_look_; }
    /// `pending`: all that is. A warning comes again when the wait has doubled; what has reached
    /// its limit, at every look.
    std::vector<Stalled> look(const std::vector<std::shared_ptr<Pending>>& pending,
                              base::Clock::time_point now);

private:
    struct Observation {
        base::Clock::time_point since, next_warning, deadline;
        std::uint64_t look = 0;
    };
    using Observations = std::map<std::weak_ptr<Pending>, Observation, std::owner_less<>>;

    bool publish(Pending& pending);  ///< false if there is no room
    void publish_unlisted(std::int64_t count) noexcept {
        own_.unlisted_count.fetch_add(count - std::exchange(unlisted_, count));
    }
    base::Deadline deadline_of(const Request& request, base::Clock::time_point since) const;

    const StallLimits limits_;
    const protocol::GroupRanks group_ranks_;
    trace::Activity& own_;
    const std::chrono::milliseconds between_looks_;
    base::Clock::time_point next_look_{};
    std::uint64_t looks_ = 0;
    std::int64_t unlisted_ = 0;
    Observations observations_;
};

/// How an operation is called among the ranks of a host: "loss", "loss in process set 0,2".
std::string name_among(const protocol::GroupRanks& group_ranks, const std::string& name);

}  // namespace guozhuang::engine
