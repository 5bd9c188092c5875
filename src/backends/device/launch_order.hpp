#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "backends/device/rank_exchange.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "wire/group/group.hpp"

namespace guozhuang::backends {

/// The order in which a rank launches bundles of its process sets on devices. Any two sets' bundles
/// come in the same order on all ranks that are in both: on a device what is launched first may
/// hold up what comes after it, so two ranks that launch two bundles crosswise may wait for ever.
///
/// Each rank of a set proposes a number for a bundle, and the highest of them is its own. A rank
/// launches the lowest number first, where one that is not agreed yet counts as what this rank has
/// proposed, since it can only grow. This is the total order of D. Skeen, in K. Birman and T.
/// Joseph, "Reliable communication in the presence of failures", ACM TOCS 5 (1987). A rank proposes
/// when it has come to the bundle in the set's log. No ranks wait for each other in a circle:
/// whoever waits does so for a bundle of a lower number, or for a rank that has to launch one of a
/// lower number first. Thread-safe.
class LaunchOrder {
public:
    // A process set is named by its context.
    static constexpr std::uint16_t world = 0;

    /// A set besides the world begins or ends, at the same entry of the world's log on all ranks:
    /// all of them, whether they are in it or not, know whether the world's bundles are numbered.
    void open_set();
    void release_set();
    /// Whether there are bundles of other sets that this one's may have to be ordered with.
    bool concerns(std::uint16_t set) const;

    /// For the set's next bundle. It has one at a time.
    std::uint64_t propose(std::uint16_t set);
    /// True if another bundle may be next by that: then whoever waits must look.
    bool agree(std::uint16_t set, std::uint64_t highest);
    /// Whether the set's bundle is to be launched now; once it is agreed.
    bool is_next(std::uint16_t set) const;
    /// Its bundle has been launched, or never will be. True as for agree().
    bool end(std::uint16_t set) noexcept;

    /// Enclose the enqueuing of a bundle whose kernels wait for kernels of other ranks. On one
    /// device this rank runs such bundles one after the other, because the device may have no room
    /// for the kernels of two.
    void begin_alone(device::Stream& stream);
    void end_alone(device::Stream& stream);

private:
    mutable base::Mutex mutex_;
    std::uint64_t sets_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    std::uint64_t highest_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    /// Numbers of the bundles that this rank has come to and not launched, proposed or agreed.
    std::map<std::uint16_t, std::uint64_t> numbers_ GUOZHUANG_GUARDED_BY(mutex_);
    /// By device: the end of the last one there.
    std::map<int, std::shared_ptr<const device::Event>> alone_ GUOZHUANG_GUARDED_BY(mutex_);
};

/// A bundle's turn to be launched: this rank launches no other that is numbered meanwhile.
class LaunchTurn {
public:
    /// Waits for it. Collective in the set: each rank comes here with the same bundle. Throws what
    /// ends the job.
    LaunchTurn(LaunchOrder& order, const RankExchange& ranks, const wire::Group& group);
    ~LaunchTurn();
    LaunchTurn(const LaunchTurn&) = delete;
    LaunchTurn& operator=(const LaunchTurn&) = delete;

private:
    void wake_others() noexcept;

    LaunchOrder& order_;
    const wire::Group& group_;
};

}  // namespace guozhuang::backends
