// Pairwise all-to-all: in step s every rank sends to the one s to its right and receives from the
// one s to its left, so each rank has one partner each way at a time and no link is crowded.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005.
//
//           rank 0            rank 1            rank 2            rank 3
//   step 0  0.1 -> 1          1.2 -> 2          2.3 -> 3          3.0 -> 0
//   step 1  0.2 -> 2          1.3 -> 3          2.0 -> 0          3.1 -> 1
//   step 2  0.3 -> 3          1.0 -> 0          2.1 -> 1          3.2 -> 2
//   end     0.0 1.0 2.0 3.0   0.1 1.1 2.1 3.1   0.2 1.2 2.2 3.2   0.3 1.3 2.3 3.3
//
// Cost: (p-1) alpha + (p-1)/p n beta with even parts.
// Needs: no scratch.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/concepts/wire.hpp"

namespace guozhuang::pairwise {

/// outgoing[r] goes to rank r, incoming[r] comes from rank r. Each may be empty; outgoing[r] on
/// rank s is as long as incoming[s] on rank r. The two must not overlap.
template <Wire W>
void all_to_all(W& wire, std::span<const std::span<const std::byte>> outgoing,
                std::span<const std::span<std::byte>> incoming) {
    const int size = wire.size();
    const auto self = static_cast<std::size_t>(wire.rank());
    if (!outgoing[self].empty())
        std::memcpy(incoming[self].data(), outgoing[self].data(), outgoing[self].size());
    for (int step = 1; step < size; ++step) {
        const int to = (wire.rank() + step) % size;
        const int from = (wire.rank() - step + size) % size;
        exchange(wire, outgoing[static_cast<std::size_t>(to)], to,
                 incoming[static_cast<std::size_t>(from)], from);
    }
}

}  // namespace guozhuang::pairwise
