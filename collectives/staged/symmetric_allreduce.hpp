// Symmetric allreduce: every rank shows its whole bundle to the others, waits once, and adds up all
// of them for itself. One round is the least latency there is; but since every rank adds up
// everything, it is for the smallest bundles only. A bundle that fits the note travels in the same
// cache line as the word that the others wait for.
//
// The shared-memory form of the all-to-all broadcast allreduce (R. L. Graham, G. Shipman: MPI
// support for multi-core architectures: optimized shared memory collectives, EuroPVM/MPI 2008).
//
//           rank 0   rank 1   rank 2
//   step 0  0        1        2
//   end     0+1+2    0+1+2    0+1+2
//
// Cost: one wait; n copied in, p n read and added up by every rank.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once. The same bits as recursive doubling.
// Needs: no scratch but the terms.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/concepts/reduce.hpp"

namespace guozhuang::staged {

/// Up to here a bundle is quicker added up by everybody than shared out: a second wait costs more.
/// It costs still more where ranks share cores: it lasts until every rank has had one. But there
/// all ranks' additions take turns, too.
template <PeerMemory P>
std::size_t symmetric_limit_bytes(const P& group) {
    constexpr std::size_t limit = 2048, limit_of_all = 16384;
    if (!group.ranks_share_cores()) return limit;
    return std::max(limit, limit_of_all / static_cast<std::size_t>(group.size()));
}

/// `bytes`: of all tensors together, at most symmetric_limit_bytes(). `terms`: as many as ranks.
/// Returns what the await of its round does.
template <PeerMemory P>
bool symmetric_allreduce(P& group, std::span<const std::span<std::byte>> tensors, std::size_t bytes,
                         const Reduce& reduce, std::span<std::span<const std::byte>> terms) {
    const auto round = group.round();
    const auto shown = [&](int peer) -> std::span<std::byte> {
        if (bytes <= note_bytes) return group.note(peer, round).first(bytes);
        return group.room(peer, round).first(bytes);
    };
    auto out = shown(group.rank());
    for (const auto tensor : tensors) {
        out = out.subspan(group.put(out, tensor));
    }
    group.publish(bytes);
    if (!group.await(round)) return false;
    std::size_t at = 0;
    for (const auto tensor : tensors) {
        for (int peer = 0; peer < group.size(); ++peer)
            terms[static_cast<std::size_t>(peer)] = shown(peer).subspan(at, tensor.size());
        if (!tensor.empty()) reduce.combine_tree(tensor, terms);
        at += tensor.size();
    }
    return true;
}

}  // namespace guozhuang::staged
