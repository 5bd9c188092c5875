// Staged all-gather: every rank copies its block to its stage and copies in those of the others,
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

namespace guozhuang::staged {

/// blocks[r] is rank r's; all have the same length. This rank's block is the input.
template <PeerMemory P>
void staged_all_gather(P& group, std::span<const std::span<std::byte>> blocks,
                       std::size_t segment_bytes) {
    const StageLayout layout(group.stage(group.rank()).size(), group.size());
    std::size_t largest = 0;
    for (const auto block : blocks) largest = std::max(largest, block.size());
    const Chunks chunks(largest, std::min(segment_bytes, layout.contribution_bytes()));
    const auto segment_of = [&](int rank, std::size_t chunk) {
        const auto block = blocks[static_cast<std::size_t>(rank)];
        return slice(block, chunks.segment(rank, block.size(), chunk));
    };
    const auto stage_out = [&](std::size_t chunk) {
        return group.put(layout.contributions(group.stage(group.rank()), group.round()),
                         segment_of(group.rank(), chunk));
    };
    const auto copy_in = [&](std::size_t chunk) {
        for (int peer = 0; peer < group.size(); ++peer) {
            if (peer == group.rank()) continue;
            const auto into = segment_of(peer, chunk);
            copy(into,
                 layout.contributions(group.stage(peer), group.round() - 1).first(into.size()));
        }
    };
    staged_rounds(group, chunks.count(), stage_out, copy_in);
}

}  // namespace guozhuang::staged
