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

/// One rank's view of the regions: memory that the ranks of a host have opened to each other. Every
/// rank has a part of each region, and all ranks have mapped all parts. Thread-safe.
class Regions {
public:
    /// A range of this rank's part: its memory, and its offset in the part.
    struct Range {
        std::span<std::byte> memory;
        std::uint64_t offset = 0;
    };

    /// `id`: the same on all ranks, never used before, not 0. `own`: this rank's part, by its own
    /// addresses; overlaps no other range. `mappings`: each rank's part, by rank, where this rank
    /// has mapped it. `unshare`: takes this rank's memory out of the others' reach; does not throw
    /// or call foreign code.
    void add(std::uint64_t id, const std::vector<Range>& own,
             std::vector<std::span<std::byte>> mappings, std::function<void()> unshare = {});
    /// Ends a region: takes this rank's memory out of the others' reach. Between bundles, unless
    /// the job is over.
    void remove(std::uint64_t id) noexcept;
    /// Ends all regions once the job is over: a late rank could otherwise still write to them.
    void remove_all() noexcept;

    /// Where other ranks find this rank's memory: the largest part of it within one range.
    RegionRef locate(std::span<const std::byte> memory) const;
    /// The memory that another rank's ref names; empty if this rank does not have the region.
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
