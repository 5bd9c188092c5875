// Staged reduce-scatter: every rank copies the blocks that it does not own to its room, and adds
// up its own from all rooms, a segment of each at a time. It is the first half of
// staged_allreduce.hpp, with the same bits.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005, with loads and stores instead of
// messages.
//
// Cost: segments rounds; (p-1)/p n (beta + gamma).
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once.
// Needs: stage_scratch_bytes; segments are shortened to what a room holds. The input is not
// changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/direct/direct_reduce_scatter.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::staged {

template <PeerMemory P>
void staged_reduce_scatter(P& group, const direct::ReduceScatterArgs& args) {
    const auto room = group.room(group.rank(), group.round()).size();
    const Chunks chunks(direct::largest_bytes(args.input),
                        std::min(args.segment_bytes, section_limit_bytes(room, group.size())));
    const auto terms =
        Scratch(args.scratch)
            .cut_array<std::span<const std::byte>>(static_cast<std::size_t>(group.size()));
    const auto segment_of = [&](int block, std::size_t chunk) {
        const auto whole = args.input[static_cast<std::size_t>(block)];
        return slice(whole, chunks.segment(block, whole.size(), chunk));
    };
    const auto part = [&](int from, int to, std::uint64_t round) {
        return section(group.room(from, round), to, chunks.segment_bytes());
    };
    const auto stage_out = [&](std::size_t chunk, std::uint64_t round) {
        std::size_t bytes = 0;
        for (int peer = 0; peer < group.size(); ++peer)
            if (peer != group.rank())
                bytes += group.put(part(group.rank(), peer, round), segment_of(peer, chunk));
        return bytes;
    };
    const auto add_up = [&](std::size_t chunk, std::uint64_t round) {
        const auto own = segment_of(group.rank(), chunk);
        for (int peer = 0; peer < group.size(); ++peer)
            terms[static_cast<std::size_t>(peer)] =
                peer == group.rank()
                    ? own
                    : std::span<const std::byte>(part(peer, group.rank(), round).first(own.size()));
        args.reduce.combine_tree(
            slice(args.output, chunks.segment(group.rank(), args.output.size(), chunk)), terms);
    };
    staged_rounds(group, chunks.count(), stage_out, add_up);
}

}  // namespace guozhuang::staged
