#pragma once

#include <cstddef>
#include <memory>

#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/shm/regions.hpp"

namespace guozhuang::wire {

/// What the ranks of one host have for each other besides messages: doorbells, pages that say what
/// each is doing, and shared memory. Thread-safe.
class HostServices {
public:
    virtual ~HostServices() = default;

    /// Where this rank says what it is doing, for the others of its host.
    virtual trace::Activity& activity() noexcept = 0;
    /// Where this rank waits, and how.
    virtual base::Doorbell& doorbell() noexcept = 0;
    virtual const base::WaitSettings& wait_settings() const noexcept = 0;

    /// How much each rank may take of memory in which the ranks of its host stage data for each
    /// other, if on every host all ranks share memory; else 0, on every rank.
    virtual std::size_t stage_bytes() const noexcept = 0;
    /// Bytes written to this rank's stage, for traffic().
    virtual void count_staged(std::size_t bytes) noexcept = 0;
    /// Wakes a rank of this host that sleeps: for news that are in shared memory; see base::nudge
    /// for how they must be stored.
    virtual void nudge(int rank, base::Audience audience) noexcept = 0;

    /// What the ranks of this host have opened to each other; may outlive the transport.
    const std::shared_ptr<Regions>& regions() const noexcept { return regions_; }

private:
    const std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
};

}  // namespace guozhuang::wire
