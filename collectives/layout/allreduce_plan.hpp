#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "collectives/layout/blocks.hpp"

namespace guozhuang {

/// One allreduce, in place, as every allreduce algorithm takes it: the same blocks, arithmetic and segment size on every rank.
struct AllreducePlan {
    const Blocks& blocks;          ///< the bundle; into how many blocks, the algorithm says
    std::span<std::byte> scratch;  ///< at least the algorithm's `*_scratch_bytes`, aligned to scratch_alignment
    const Reduce& reduce;
    std::size_t segment_bytes = 0;                       ///< largest message, where the algorithm cuts any
    std::span<const std::span<std::byte>> members = {};  ///< those that the blocks were cut from, for algorithms that can do without blocks
    Blocks* rest = nullptr;                              ///< for them: room for the blocks of what they cannot
};

}  // namespace guozhuang
