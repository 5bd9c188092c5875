// Dissemination barrier: in round k every rank sends a token to the rank 2^k to its right and
// receives one from the rank 2^k to its left. After ceil(log2 p) rounds each rank has heard from
// all others, directly or not.
//
// D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization, Int. J. Parallel
// Program. 17(1), 1988.
//
//           rank 0   rank 1   rank 2   rank 3   rank 4   rank 5
//   step 0  -> 1     -> 2     -> 3     -> 4     -> 5     -> 0
//   step 1  -> 2     -> 3     -> 4     -> 5     -> 0     -> 1
//   step 2  -> 4     -> 5     -> 0     -> 1     -> 2     -> 3
//
// Cost: ceil(log2 p) alpha.
// Needs: barrier_scratch_bytes. The token is in scratch because an aborted message may go on using
// it.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/wire.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::tree {

inline constexpr std::size_t barrier_scratch_bytes = 2 * scratch_alignment;

/// No rank returns before every rank has called it.
template <Wire W>
void barrier(W& wire, std::span<std::byte> scratch) {
    Scratch buffers(scratch);
    const auto token = buffers.cut(1), heard = buffers.cut(1);
    token[0] = std::byte{1};
    const int size = wire.size();
    for (int distance = 1; distance < size; distance *= 2) {
        exchange(wire, token, (wire.rank() + distance) % size, heard,
                 (wire.rank() - distance + size) % size);
    }
}

}  // namespace guozhuang::tree
