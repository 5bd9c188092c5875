// Staged reduce-scatter: every rank copies the blocks that it does not own to its stage and adds up
// its own from all stages, a segment of each at a time. The first half of staged_allreduce.hpp,
// whose bits it gives.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005, with loads and stores in the place of
// messages.
//
// Cost: segments rounds; (p-1)/p n (beta + gamma).
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once.
// Needs: stage_scratch_bytes; segments are shortened to what the stage holds. The input is not
// changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "collectives/direct/reduce_scatter.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::direct {

template <PeerMemory P>
void staged_reduce_scatter(P& peers, const ReduceScatterPlan& plan) {
    const StageLayout layout(peers.stage(peers.rank()).size(), peers.size());
    const Chunks chunks(largest_bytes(plan.input),
                        std::min(plan.segment_bytes, layout.segment_bytes()));
    const auto terms =
        Scratch(plan.scratch)
            .cut_array<std::span<const std::byte>>(static_cast<std::size_t>(peers.size()));
    const auto piece = [&](int block, std::size_t chunk) {
        const auto whole = plan.input[static_cast<std::size_t>(block)];
        return part(whole, chunks.segment(block, whole.size(), chunk));
    };
    const auto give = [&](std::size_t chunk) {
        std::size_t bytes = 0;
        for (int peer = 0; peer < peers.size(); ++peer)
            if (peer != peers.rank())
                bytes += peers.put(layout.given(peers.stage(peers.rank()), peers.round(), peer),
                                   piece(peer, chunk));
        return bytes;
    };
    const auto take = [&](std::size_t chunk) {
        const auto own = piece(peers.rank(), chunk);
        for (int peer = 0; peer < peers.size(); ++peer) {
            const auto given = layout.given(peers.stage(peer), peers.round() - 1, peers.rank());
            terms[static_cast<std::size_t>(peer)] =
                peer == peers.rank() ? own : std::span<const std::byte>(given.first(own.size()));
        }
        plan.reduce.combine_tree(
            part(plan.output, chunks.segment(peers.rank(), plan.output.size(), chunk)), terms);
    };
    staged_rounds(peers, chunks.count(), give, take);
}

}  // namespace guozhuang::direct
