#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "backends/device/rank_exchange.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "wire/group/group.hpp"

namespace guozhuang::backends {

/// The order in which a rank launches bundles of its process sets on devices. Ranks that are in two
/// sets launch the sets' bundles in the same order: on a device earlier launches may hold up later
/// ones, so two ranks that launch two bundles in opposite orders may wait for ever.
///
/// Each rank of a set proposes a number for a bundle, and the bundle gets the highest. A rank
/// launches the lowest number first; until a number is agreed, its own proposal counts, since the
/// number can only grow. This is the total order of D. Skeen, in K. Birman and T. Joseph, "Reliable
/// communication in the presence of failures", ACM TOCS 5 (1987). A rank proposes when it has
/// reached the bundle in the set's log. Ranks cannot wait in a circle: each waits for a bundle with
/// a lower number, or for a rank that must launch one with a lower number first. Thread-safe.
class LaunchOrder {
public:
    // A process set is named by its context.
    static constexpr std::uint16_t world = 0;

    /// A set besides the world begins or ends, at the same entry of the world's log on all ranks,
    /// so that all ranks, in the set or not, know whether the world's bundles are numbered.
    void open_set();
    void release_set();
    /// Whether this set's bundles may have to be ordered with those of other sets.
    bool concerns(std::uint16_t set) const;

    /// Proposes a number for the set's next bundle. A set has one bundle at a time here.
    std::uint64_t propose(std::uint16_t set);
    /// Returns true if another bundle may now be next: then waiting threads must look.
    bool agree(std::uint16_t set, std::uint64_t highest);
    /// Whether the set's bundle may be launched now; called once its number is agreed.
    bool is_next(std::uint16_t set) const;
    /// The set's bundle has been launched, or never will be. Returns true as agree() does.
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
    /// Numbers, proposed or agreed, of the bundles that this rank has reached and not launched.
    std::map<std::uint16_t, std::uint64_t> numbers_ GUOZHUANG_GUARDED_BY(mutex_);
    /// By device: the end of the last such bundle.
    std::map<int, std::shared_ptr<const device::Event>> alone_ GUOZHUANG_GUARDED_BY(mutex_);
};

/// A bundle's turn to be launched: meanwhile this rank launches no other numbered bundle.
class LaunchTurn {
public:
    /// Waits for the turn. Collective in the set: each rank calls it for the same bundle. Throws
    /// what ends the job.
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
