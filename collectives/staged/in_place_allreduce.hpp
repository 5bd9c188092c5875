// In-place direct allreduce, for tensors that all ranks have mapped, on every rank. Each rank adds
// up its share of the bundle from all ranks' tensors, and writes the sum into all of them. Nothing
// is staged: every input is read once and every output written once, which is the least possible.
// Private tensors, and ends that share a page with other data, are left to the caller.
//
// Reduce-scatter by direct exchange and all-gather (R. Thakur, R. Rabenseifner, W. Gropp:
// Optimization of collective communication operations in MPICH, Int. J. High Perform. Comput. Appl.
// 19(1), 2005), with loads and stores on the tensors instead of messages, as XPMEM made it possible
// (J. M. Hashmi et al.: Designing efficient shared address space reduction collectives for
// multi-/many-cores, IPDPS 2018).
//
//           rank 0                       rank 1                       rank 2
//   before  b0=0 b1=0 b2=0               b0=1 b1=1 b2=1               b0=2 b1=2 b2=2
//   step 0  b0=0+1+2 b1=0+1+2 b2=0+1+2   b0=0+1+2 b1=0+1+2 b2=0+1+2   b0=0+1+2 b1=0+1+2 b2=0+1+2
//           (b0 written by rank 0, b1 by rank 1, b2 by rank 2)
//
// Cost: two waits, one for the refs to the tensors, one for the sums, both the caller's; n read, n
// written.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once. The same bits as the staged algorithm.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/concepts/reduce.hpp"
#include "collectives/staged/tensor_regions.hpp"

namespace guozhuang::staged {

/// Where a rank's share of the bundle begins; shares are cut at cache lines, one tensor after
/// another.
constexpr std::size_t share_begin(std::size_t bundle_bytes, int rank, int ranks) noexcept {
    if (rank == ranks) return bundle_bytes;
    return bundle_bytes / static_cast<std::size_t>(ranks) * static_cast<std::size_t>(rank) /
           scratch_alignment * scratch_alignment;
}

/// The work of one allreduce on one rank.
template <PeerMemory P>
class InPlaceAllreduce {
public:
    /// `terms` and `by_rank`: one element for each rank.
    InPlaceAllreduce(P& group, const TensorRegions<P>& regions, const Reduce& reduce,
                     std::span<std::span<const std::byte>> terms,
                     std::span<std::span<std::byte>> by_rank)
        : group_(group),
          regions_(regions),
          tensors_(regions.tensors()),
          reduce_(reduce),
          terms_(terms),
          by_rank_(by_rank) {}

    /// Adds up this rank's share. All ranks have the sums once all have answered. Returns how many
    /// bytes it has written to other ranks' memory.
    std::size_t run() {
        std::size_t total = 0;
        for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor)
            total += regions_.common(tensor).bytes();
        const ByteRange share{share_begin(total, group_.rank(), group_.size()),
                              share_begin(total, group_.rank() + 1, group_.size())};
        std::size_t at = 0;
        for (std::size_t tensor = 0; tensor < tensors_.size() && at < share.end; ++tensor) {
            const auto open = regions_.common(tensor);
            const auto first = std::max(share.begin, at),
                       last = std::min(share.end, at + open.bytes());
            if (first < last) reduce(tensor, {open.begin + (first - at), open.begin + (last - at)});
            at += open.bytes();
        }
        return share.bytes() * static_cast<std::size_t>(group_.size() - 1);
    }

private:
    using ByteRange = typename TensorRegions<P>::ByteRange;

    /// Works tile by tile: a tile is in the first-level cache when it is written to the others.
    void reduce(std::size_t tensor, const ByteRange& range) {
        const auto self = static_cast<std::size_t>(group_.rank());
        for (int peer = 0; peer < group_.size(); ++peer)
            by_rank_[static_cast<std::size_t>(peer)] =
                peer == group_.rank() ? tensors_[tensor].subspan(range.begin, range.bytes())
                                      : regions_.at(peer, tensor, range);
        for (std::size_t at = 0; at < range.bytes(); at += tile_bytes) {
            const auto bytes = std::min(tile_bytes, range.bytes() - at);
            std::ranges::transform(
                by_rank_, terms_.begin(),
                [&](std::span<const std::byte> memory) { return memory.subspan(at, bytes); });
            const auto sum = by_rank_[self].subspan(at, bytes);
            reduce_.combine_tree(sum, terms_);
            for (std::size_t peer = 0; peer < by_rank_.size(); ++peer)
                if (peer != self) std::memcpy(by_rank_[peer].data() + at, sum.data(), bytes);
            moved_ += bytes;
            if (moved_ < yield_after_bytes) continue;
            moved_ = 0;
            group_.yield_to_others();
        }
    }

    static constexpr std::size_t tile_bytes = std::size_t{8} << 10;
    static constexpr std::size_t yield_after_bytes = std::size_t{1} << 20;

    P& group_;
    const TensorRegions<P>& regions_;
    std::span<const std::span<std::byte>> tensors_;
    const Reduce& reduce_;
    std::span<std::span<const std::byte>> terms_;
    std::span<std::span<std::byte>> by_rank_;
    std::size_t moved_ = 0;
};

}  // namespace guozhuang::staged
