// Ring all-gather: every rank starts with one block and ends with all of them. In each step a rank
// passes to the right the block that it received in the step before, so every link carries one
// block at a time, all of the time.
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, J.
// Parallel Distrib. Comput. 69(2), 2009.
//
//           rank 0        rank 1        rank 2        rank 3
//   step 0  b0 -> 1       b1 -> 2       b2 -> 3       b3 -> 0
//   step 1  b3 -> 1       b0 -> 2       b1 -> 3       b2 -> 0
//   step 2  b2 -> 1       b3 -> 2       b0 -> 3       b1 -> 0
//   end     b0 b1 b2 b3   b0 b1 b2 b3   b0 b1 b2 b3   b0 b1 b2 b3
//
// Cost: (p-1) alpha + (p-1)/p n beta with even blocks; with uneven ones each step takes as long as
// the longest block on its way.
// Needs: no scratch.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/wire.hpp"
#include "collectives/ring/neighbours.hpp"

namespace guozhuang::ring {

constexpr Hop all_gather_hop(int rank, int step, int size) noexcept {
    return {.send = wrap(rank - step, size), .receive = wrap(rank - 1 - step, size)};
}

/// `blocks`: one per rank, of any lengths that all ranks agree on, perhaps empty. In place: this
/// rank's own block is the input.
template <Wire W>
void all_gather(W& wire, std::span<const std::span<std::byte>> blocks) {
    for (int step = 0; step < wire.size() - 1; ++step) {
        const auto hop = all_gather_hop(wire.rank(), step, wire.size());
        exchange(wire, blocks[static_cast<std::size_t>(hop.send)], right(wire),
                 blocks[static_cast<std::size_t>(hop.receive)], left(wire));
    }
}

}  // namespace guozhuang::ring
