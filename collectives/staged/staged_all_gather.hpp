// Staged all-gather: every rank copies its block to its room and copies in those of the others,
// segment by segment.
//
// R. L. Graham, G. Shipman: MPI support for multi-core architectures: optimized shared memory
// collectives, EuroPVM/MPI 2008.
//
// Cost: segments rounds; n/p beta in and (p-1)/p n beta out.
// Needs: no scratch; segments are shortened to what a room holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::staged {

/// blocks[r] is rank r's; all have the same length. This rank's block is the input.
template <PeerMemory P>
void staged_all_gather(P& group, std::span<const std::span<std::byte>> blocks,
                       std::size_t segment_bytes) {
    std::size_t largest = 0;
    for (const auto block : blocks) largest = std::max(largest, block.size());
    const auto room = group.room(group.rank(), group.round()).size();
    const Chunks chunks(largest, std::min(segment_bytes, room));
    const auto segment_of = [&](int rank, std::size_t chunk) {
        const auto block = blocks[static_cast<std::size_t>(rank)];
        return slice(block, chunks.segment(rank, block.size(), chunk));
    };
    const auto stage_out = [&](std::size_t chunk, std::uint64_t round) {
        return group.put(group.room(group.rank(), round), segment_of(group.rank(), chunk));
    };
    const auto copy_in = [&](std::size_t chunk, std::uint64_t round) {
        for (int peer = 0; peer < group.size(); ++peer) {
            if (peer == group.rank()) continue;
            const auto into = segment_of(peer, chunk);
            copy(into, group.room(peer, round).first(into.size()));
        }
    };
    staged_rounds(group, chunks.count(), stage_out, copy_in);
}

}  // namespace guozhuang::staged
