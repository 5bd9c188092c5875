// Staged broadcast: the root copies a segment to its room, and the others copy it in while the
// root copies the next.
//
// R. L. Graham, G. Shipman: MPI support for multi-core architectures: optimized shared memory
// collectives, EuroPVM/MPI 2008.
//
// Cost: segments rounds; n beta at the root and at every other rank.
// Needs: no scratch; segments are shortened to what a room holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::staged {

/// `blocks`: one block, of the same length on all ranks.
template <PeerMemory P>
void staged_broadcast(P& group, const Blocks& blocks, int root, std::size_t segment_bytes) {
    const Chunks chunks(blocks.largest_bytes(),
                        std::min(segment_bytes, group.room(root, group.round()).size()));
    const auto segment = [&](std::size_t chunk) {
        return chunks.segment(0, blocks.bytes(0), chunk);
    };
    const bool is_root = group.rank() == root;
    const auto stage_out = [&](std::size_t chunk, std::uint64_t round) {
        if (!is_root) return std::size_t{0};
        const auto out = group.room(root, round);
        blocks.for_each_run(segment(chunk), [&](std::span<const std::byte> run, std::size_t at) {
            group.put(out.subspan(at), run);
        });
        return segment(chunk).bytes;
    };
    const auto copy_in = [&](std::size_t chunk, std::uint64_t round) {
        if (is_root) return;
        const auto in = group.room(root, round);
        blocks.for_each_run(segment(chunk), [&](std::span<std::byte> run, std::size_t at) {
            copy(run, in.subspan(at, run.size()));
        });
    };
    staged_rounds(group, chunks.count(), stage_out, copy_in);
}

}  // namespace guozhuang::staged
