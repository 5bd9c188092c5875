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
#include "protocol/members.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

/// How long an operation may be pending before it is spoken of, and before it ends the job.
struct StallSettings {
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
    StallWatch(const StallSettings& settings, const protocol::Members& members,
               trace::Activity& own);
    ~StallWatch() { tell_untold(0); }
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
    struct Seen {
        base::Clock::time_point since, next_warning, deadline;
        std::uint64_t look = 0;
    };
    using Sightings = std::map<std::weak_ptr<Pending>, Seen, std::owner_less<>>;

    bool publish(Pending& pending);  ///< false if there is no room
    void tell_untold(std::int64_t count) noexcept {
        own_.untold.fetch_add(count - std::exchange(untold_, count));
    }
    base::Deadline deadline_of(const Request& request, base::Clock::time_point since) const;

    const StallSettings settings_;
    const protocol::Members members_;
    trace::Activity& own_;
    const std::chrono::milliseconds between_looks_;
    base::Clock::time_point next_look_{};
    std::uint64_t looks_ = 0;
    std::int64_t untold_ = 0;
    Sightings sightings_;
};

/// How an operation is called among the ranks of a host: "loss", "loss in process set 0,2".
std::string name_among(const protocol::Members& members, const std::string& name);

}  // namespace guozhuang::engine
