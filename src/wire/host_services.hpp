#pragma once

#include <cstddef>
#include <memory>

#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/shm/regions.hpp"

namespace guozhuang::wire {

/// Services that the ranks of one host share besides messages: doorbells, activities, and shared
/// memory. Thread-safe.
class HostServices {
public:
    virtual ~HostServices() = default;

    /// The activity that this rank writes; the other ranks of its host read it.
    virtual trace::Activity& activity() noexcept = 0;
    /// The doorbell at which this rank waits.
    virtual base::Doorbell& doorbell() noexcept = 0;
    virtual const base::WaitSettings& wait_settings() const noexcept = 0;

    /// How many bytes each rank may use for staging data in shared memory. 0 on every rank unless
    /// the ranks of every host share memory.
    virtual std::size_t stage_bytes() const noexcept = 0;
    /// Counts bytes that this rank has written where others read them, for traffic().
    virtual void count_staged(std::size_t bytes) noexcept = 0;
    /// Wakes a rank of this host if it sleeps, for news in shared memory. See base::nudge for how
    /// the news must be stored.
    virtual void nudge(int rank, base::Audience audience) noexcept = 0;

    /// The memory that the ranks of this host have opened to each other. May outlive the transport.
    const std::shared_ptr<Regions>& regions() const noexcept { return regions_; }

private:
    const std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
};

}  // namespace guozhuang::wire
