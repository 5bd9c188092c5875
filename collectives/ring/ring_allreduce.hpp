// Ring allreduce, plain: reduce-scatter, then all-gather. To be read first; tests compare the fast
// version (pipelined_allreduce.hpp) with it.
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, J.
// Parallel Distrib. Comput. 69(2), 2009.
//
// Figures: those of reduce_scatter.hpp and all_gather.hpp, one below the other.
// Cost: 2(p-1) alpha + (p-1)/p n (2 beta + gamma): no algorithm moves fewer bytes per rank.
// Order: block b is b+1, then b+2, ... and b last. Works on elements, so f16 and bf16 round once
// per hop.
// Needs: an inbox of the largest block.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/ring/ring_reduce_scatter.hpp"

namespace guozhuang::ring {

/// `blocks`: one per rank, of lengths that all ranks agree on. In place: every block ends as the
/// finished sum.
template <Wire W>
void allreduce(W& wire, std::span<const std::span<std::byte>> blocks, std::span<std::byte> inbox,
               const Reduce& reduce) {
    reduce_scatter(wire, blocks, inbox, reduce);
    reduce.finish(blocks[static_cast<std::size_t>(wire.rank())]);
    all_gather(wire, blocks);
}

}  // namespace guozhuang::ring
