// Staged all-gather: every rank copies its block to its stage and fetches those of the others,
// segment by segment.
//
// R. L. Graham, G. Shipman: MPI support for multi-core architectures: optimized shared memory
// collectives, EuroPVM/MPI 2008.
//
// Cost: segments rounds; n/p beta in and (p-1)/p n beta out.
// Needs: no scratch; segments are shortened to what the stage holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::direct {

/// blocks[r] is rank r's, as long on all ranks; this rank's is there.
template <PeerMemory P>
void staged_all_gather(P& peers, std::span<const std::span<std::byte>> blocks,
                       std::size_t segment_bytes) {
    const StageLayout layout(peers.stage(peers.rank()).size(), peers.size());
    std::size_t largest = 0;
    for (const auto block : blocks) largest = std::max(largest, block.size());
    const Chunks chunks(largest, std::min(segment_bytes, layout.given_bytes()));
    const auto piece = [&](int rank, std::size_t chunk) {
        const auto block = blocks[static_cast<std::size_t>(rank)];
        return part(block, chunks.segment(rank, block.size(), chunk));
    };
    const auto give = [&](std::size_t chunk) {
        return peers.put(layout.given(peers.stage(peers.rank()), peers.round()),
                         piece(peers.rank(), chunk));
    };
    const auto take = [&](std::size_t chunk) {
        for (int peer = 0; peer < peers.size(); ++peer) {
            if (peer == peers.rank()) continue;
            const auto into = piece(peer, chunk);
            copy(into, layout.given(peers.stage(peer), peers.round() - 1).first(into.size()));
        }
    };
    staged_rounds(peers, chunks.count(), give, take);
}

}  // namespace guozhuang::direct
