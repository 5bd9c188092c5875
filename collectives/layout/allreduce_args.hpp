#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "collectives/layout/blocks.hpp"

namespace guozhuang {

/// The arguments of every allreduce algorithm, which works in place: the same blocks, arithmetic
/// and segment size on every rank.
struct AllreduceArgs {
    const Blocks& blocks;  ///< the bundle, in as many blocks as the algorithm needs
    /// Memory of at least the algorithm's `*_scratch_bytes`, aligned to scratch_alignment.
    std::span<std::byte> scratch;
    const Reduce& reduce;
    /// The largest message, if the algorithm cuts messages.
    std::size_t segment_bytes = 0;
    /// The tensors that the blocks were cut from, for algorithms that can do without blocks.
    std::span<const std::span<std::byte>> tensors = {};
    /// For the same algorithms: takes the blocks of the tensors for which they need blocks.
    Blocks* rest = nullptr;
};

}  // namespace guozhuang
