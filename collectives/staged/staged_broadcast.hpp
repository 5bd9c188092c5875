// Staged broadcast: the root copies a segment to its stage, and the others fetch it while the root
// copies the next.
//
// R. L. Graham, G. Shipman: MPI support for multi-core architectures: optimized shared memory
// collectives, EuroPVM/MPI 2008.
//
// Cost: segments rounds; n beta at the root and at every other rank.
// Needs: no scratch; segments are shortened to what the stage holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::direct {

/// The blocks are one, as long on all ranks.
template <PeerMemory P>
void staged_broadcast(P& peers, const Blocks& blocks, int root, std::size_t segment_bytes) {
    const StageLayout layout(peers.stage(peers.rank()).size(), peers.size());
    const Chunks chunks(blocks.largest_bytes(), std::min(segment_bytes, layout.given_bytes()));
    const auto segment = [&](std::size_t chunk) {
        return chunks.segment(0, blocks.bytes(0), chunk);
    };
    const bool is_root = peers.rank() == root;
    const auto give = [&](std::size_t chunk) {
        if (!is_root) return std::size_t{0};
        const auto out = layout.given(peers.stage(root), peers.round());
        blocks.for_each_run(segment(chunk), [&](std::span<const std::byte> run, std::size_t at) {
            peers.put(out.subspan(at), run);
        });
        return segment(chunk).bytes;
    };
    const auto take = [&](std::size_t chunk) {
        if (is_root) return;
        const auto in = layout.given(peers.stage(root), peers.round() - 1);
        blocks.for_each_run(segment(chunk), [&](std::span<std::byte> run, std::size_t at) {
            copy(run, in.subspan(at, run.size()));
        });
    };
    staged_rounds(peers, chunks.count(), give, take);
}

}  // namespace guozhuang::direct
