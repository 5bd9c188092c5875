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
#include "protocol/group_ranks.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

class Pending;
struct Request;

/// How long an operation may be pending before a warning, and before it ends the job.
struct StallLimits {
    std::chrono::milliseconds warn{0};   ///< 0: never
    std::chrono::milliseconds error{0};  ///< 0: never; an operation may have its own limit
};

/// An operation that is pending for too long.
struct Stalled {
    std::shared_ptr<Pending> pending;
    std::chrono::milliseconds age{};
    bool warn = false;
    std::chrono::milliseconds limit{0};  ///< the limit that it has reached; 0: none
};

/// Finds operations that are pending for too long, and publishes in the rank's activity those
/// pending at a look. Looks come at intervals, so an operation that ends soon costs nothing. Not
/// thread-safe: the engine's lock guards it.
class StallWatch {
public:
    /// `own`: this rank's activity, which must outlive this.
    StallWatch(const StallLimits& limits, const protocol::GroupRanks& group_ranks,
               trace::Activity& own);
    ~StallWatch() { publish_unlisted(0); }
    StallWatch(const StallWatch&) = delete;
    StallWatch& operator=(const StallWatch&) = delete;

    /// Call it when an operation with its own limit is submitted.
    void expect(base::Deadline deadline) noexcept { next_look_ = std::min(next_look_, deadline); }
    bool is_due(base::Clock::time_point now) const noexcept { return now >= next_look_; }
    /// `pending`: all operations that are pending. Warns of one again when its wait has doubled;
    /// returns one that has reached its limit at every look.
    std::vector<Stalled> look(const std::vector<std::shared_ptr<Pending>>& pending,
                              base::Clock::time_point now);

    /// Whether something holds, and has held at every look for as long as the limit.
    bool has_lasted(const Stalled& stalled, bool holds);
    /// Makes the next look warn again.
    void repeat(const Stalled& stalled) { observations_[stalled.pending].next_warning = {}; }

private:
    struct Observation {
        base::Clock::time_point since, next_warning, deadline, held_up = base::no_deadline;
        std::uint64_t look = 0;
    };
    using Observations = std::map<std::weak_ptr<Pending>, Observation, std::owner_less<>>;

    bool publish(Pending& pending);  ///< false if no slot is free
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

/// Writes what other ranks of the host read: "allreduce", "loss" or "loss in process set 0,2".
void write_operation(trace::Note& note, std::string_view operation, std::string_view name,
                     const protocol::GroupRanks& group_ranks);

}  // namespace guozhuang::engine
