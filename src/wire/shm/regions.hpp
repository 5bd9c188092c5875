#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "collectives/concepts/peer_memory.hpp"

namespace guozhuang::wire {

/// Memory that the ranks of a host have opened to each other: regions, of which every rank has a
/// part that all have mapped. As one rank sees them. Thread-safe.
class Regions {
public:
    /// Where a range of a rank's own part lies in its memory.
    struct Range {
        std::span<std::byte> memory;
        std::uint64_t offset = 0;
    };

    /// `id`: the same on all ranks, never used before, not 0. `own`: this rank's part, by its own
    /// addresses; overlaps no other range. `mappings`: each rank's part, by rank, as this one has
    /// it mapped. `unshare`: takes this rank's memory out of the others' reach; does not throw, nor
    /// call anybody else's code.
    void add(std::uint64_t id, const std::vector<Range>& own,
             std::vector<std::span<std::byte>> mappings, std::function<void()> unshare = {});
    /// Ends a region: takes this rank's memory out of the others' reach. Between bundles, unless
    /// the job is over.
    void remove(std::uint64_t id) noexcept;
    /// Ends all regions, since the job is over: a rank that has been slow may still write to what
    /// it knows of them.
    void remove_all() noexcept;

    /// Where the others find memory of this rank: the largest part of it that lies in one range.
    RegionRef locate(std::span<const std::byte> memory) const;
    /// The memory that a ref of another rank names; empty if it is not in a region that this rank
    /// has.
    std::span<std::byte> at(int rank, const RegionRef& ref) const;

private:
    struct Region {
        std::vector<std::span<std::byte>> mappings;
        std::function<void()> unshare;
    };
    struct OwnRange {
        Range range;
        std::uint64_t region = 0;
    };

    mutable base::Mutex mutex_;
    std::vector<OwnRange> own_ GUOZHUANG_GUARDED_BY(mutex_);  ///< of all regions, by address
    std::map<std::uint64_t, Region> regions_ GUOZHUANG_GUARDED_BY(mutex_);
    std::atomic<bool> is_empty_{true};  ///< regions_.empty(): then locate() takes no lock
};

}  // namespace guozhuang::wire
