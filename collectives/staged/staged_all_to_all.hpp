// Staged all-to-all: every rank copies the data that it sends to its room, and copies in its own
// from the other stages, a segment of each part at a time.
//
// R. L. Graham, G. Shipman: MPI support for multi-core architectures: optimized shared memory
// collectives, EuroPVM/MPI 2008.
//
// Cost: segments rounds; (p-1)/p n beta in and out with even parts.
// Needs: no scratch; segments are shortened to what a room holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::staged {

/// outgoing[r] goes to rank r, incoming[r] comes from rank r; they must not overlap.
/// `largest_bytes`: the length of the longest part between any two ranks, the same on all ranks.
template <PeerMemory P>
void staged_all_to_all(P& group, std::span<const std::span<const std::byte>> outgoing,
                       std::span<const std::span<std::byte>> incoming, std::size_t largest_bytes,
                       std::size_t segment_bytes) {
    const auto room = group.room(group.rank(), group.round()).size();
    const Chunks chunks(largest_bytes,
                        std::min(segment_bytes, section_limit_bytes(room, group.size())));
    const auto self = static_cast<std::size_t>(group.rank());
    const auto segment_of = [&](const auto& buffers, int peer, std::size_t chunk) {
        const auto whole = buffers[static_cast<std::size_t>(peer)];
        return slice(whole, chunks.segment(peer, whole.size(), chunk));
    };
    copy(incoming[self], outgoing[self]);
    const auto part = [&](int from, int to, std::uint64_t round) {
        return section(group.room(from, round), to, chunks.segment_bytes());
    };
    const auto stage_out = [&](std::size_t chunk, std::uint64_t round) {
        std::size_t bytes = 0;
        for (int peer = 0; peer < group.size(); ++peer)
            if (peer != group.rank())
                bytes +=
                    group.put(part(group.rank(), peer, round), segment_of(outgoing, peer, chunk));
        return bytes;
    };
    const auto copy_in = [&](std::size_t chunk, std::uint64_t round) {
        for (int peer = 0; peer < group.size(); ++peer) {
            if (peer == group.rank()) continue;
            const auto into = segment_of(incoming, peer, chunk);
            copy(into, part(peer, group.rank(), round).first(into.size()));
        }
    };
    staged_rounds(group, chunks.count(), stage_out, copy_in);
}

}  // namespace guozhuang::staged
