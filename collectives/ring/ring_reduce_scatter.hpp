// Ring reduce-scatter: every rank ends with the sum of one block. In each step a rank passes one
// block to the right and adds its own term to the block that arrives from the left, so each block
// goes once around the ring and collects every rank's term on the way to its owner.
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, J.
// Parallel Distrib. Comput. 69(2), 2009; with the blocks shifted by one, so that rank b ends with
// block b.
//
//           rank 0          rank 1          rank 2          rank 3
//   step 0  b3=0 -> 1       b0=1 -> 2       b1=2 -> 3       b2=3 -> 0
//   step 1  b2=3+0 -> 1     b3=0+1 -> 2     b0=1+2 -> 3     b1=2+3 -> 0
//   step 2  b1=2+3+0 -> 1   b2=3+0+1 -> 2   b3=0+1+2 -> 3   b0=1+2+3 -> 0
//   end     b0=1+2+3+0      b1=2+3+0+1      b2=3+0+1+2      b3=0+1+2+3
//
// Cost: (p-1) alpha + (p-1)/p n (beta + gamma).
// Order: block b is b+1, then b+2, ... and b last: fixed by the block alone. Works on elements, so
// f16 and bf16 round once per hop.
// Needs: an inbox of the largest block.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/ring/neighbours.hpp"

namespace guozhuang::ring {

constexpr Hop reduce_scatter_hop(int rank, int step, int size) noexcept {
    return {.send = wrap(rank - 1 - step, size), .receive = wrap(rank - 2 - step, size)};
}

/// `blocks`: one per rank, of any lengths that all ranks agree on, perhaps empty. In place: this
/// rank's own block ends as the sum, not finished; the others end as partial sums.
template <Wire W>
void reduce_scatter(W& wire, std::span<const std::span<std::byte>> blocks,
                    std::span<std::byte> inbox, const Reduce& reduce) {
    for (int step = 0; step < wire.size() - 1; ++step) {
        const auto hop = reduce_scatter_hop(wire.rank(), step, wire.size());
        const auto outgoing = blocks[static_cast<std::size_t>(hop.send)];
        const auto mine = blocks[static_cast<std::size_t>(hop.receive)];
        const auto arrived = inbox.first(mine.size());
        exchange(wire, outgoing, right(wire), arrived, left(wire));
        reduce.combine(mine, arrived, mine);
    }
}

}  // namespace guozhuang::ring
