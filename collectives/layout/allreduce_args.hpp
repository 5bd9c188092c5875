#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "collectives/layout/blocks.hpp"

namespace guozhuang {

/// One allreduce, in place, as every allreduce algorithm takes it: the same blocks, arithmetic and
/// segment size on every rank.
struct AllreduceArgs {
    const Blocks& blocks;  ///< the bundle; into how many blocks, the algorithm says
    /// Memory of at least the algorithm's `*_scratch_bytes`, aligned to scratch_alignment.
    std::span<std::byte> scratch;
    const Reduce& reduce;
    /// The largest message, where the algorithm cuts any.
    std::size_t segment_bytes = 0;
    /// The tensors that the blocks were cut from, for algorithms that can do without blocks.
    std::span<const std::span<std::byte>> tensors = {};
    /// For the same algorithms: room for the blocks of what they cannot do without.
    Blocks* rest = nullptr;
};

}  // namespace guozhuang
