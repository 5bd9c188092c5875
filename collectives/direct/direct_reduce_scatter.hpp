// Direct-exchange reduce-scatter: every rank sends each peer that peer's block, and receives p-1
// copies of its own, which it adds up in the order of ranks. As many bytes travel as in the ring,
// but all terms of a sum are on one rank, so they can be added in any order and rounded once.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005 (there as the pairwise exchange
// algorithm).
//
//           rank 0         rank 1         rank 2         rank 3
//   step 0  b1=0 -> 1      b2=1 -> 2      b3=2 -> 3      b0=3 -> 0
//   step 1  b2=0 -> 2      b3=1 -> 3      b0=2 -> 0      b1=3 -> 1
//   step 2  b3=0 -> 3      b0=1 -> 0      b1=2 -> 1      b2=3 -> 2
//   end     b0=0+1+(2+3)   b1=0+1+(2+3)   b2=0+1+(2+3)   b3=0+1+(2+3)
//
// Cost: (p-1) alpha + (p-1)/p n (beta + gamma).
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32.
// Needs: reduce_scatter_scratch_bytes: p-1 segments per chunk in flight. The input is not changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/reduce.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/direct/pairwise_exchange.hpp"
#include "collectives/layout/chunks.hpp"

namespace guozhuang::direct {

struct ReduceScatterArgs {
    /// One block per rank, of any lengths that all ranks agree on.
    std::span<const std::span<const std::byte>> input;
    /// This rank's block of the sum; it may be this rank's block of the input.
    std::span<std::byte> output;
    std::span<std::byte> scratch;
    const Reduce& reduce;
    std::size_t segment_bytes = 0;
};

/// As Chunks, but that a rank sends a segment of each chunk to every other rank.
template <Wire W>
Chunks direct_chunks(const W& wire, std::size_t largest_block_bytes, std::size_t segment_bytes) {
    const auto others = std::max<std::size_t>(static_cast<std::size_t>(wire.size()), 2) - 1;
    return {largest_block_bytes, segment_bytes, wire.window_bytes() / others};
}

inline std::size_t largest_bytes(std::span<const std::span<const std::byte>> blocks) noexcept {
    std::size_t largest = 0;
    for (const auto block : blocks) largest = std::max(largest, block.size());
    return largest;
}

template <Wire W>
std::size_t reduce_scatter_scratch_bytes(const W& wire,
                                         std::span<const std::span<const std::byte>> blocks,
                                         std::size_t segment_bytes) {
    const auto ranks = blocks.size();
    const auto chunks = direct_chunks(wire, largest_bytes(blocks), segment_bytes);
    const auto slot = PairwiseExchange<W>::scratch_bytes(static_cast<int>(ranks)) +
                      padded_array<std::span<const std::byte>>(ranks) +
                      (ranks - 1) * chunks.segment_bytes();
    return chunks.slots() * slot;
}

/// The copies of one segment that a rank adds up: those of its peers arrive in scratch, its own
/// stays in the input.
class Terms {
public:
    Terms() = default;
    Terms(int ranks, int self, std::size_t segment_bytes, Scratch& scratch)
        : terms_(scratch.cut_array<std::span<const std::byte>>(static_cast<std::size_t>(ranks))),
          rooms_(scratch.cut(static_cast<std::size_t>(ranks - 1) * segment_bytes)),
          self_(self),
          segment_bytes_(segment_bytes) {}

    /// Where to receive the copy of `peer`.
    std::span<std::byte> room(int peer, std::size_t bytes) {
        const auto room = rooms_.subspan(
            static_cast<std::size_t>(peer < self_ ? peer : peer - 1) * segment_bytes_, bytes);
        terms_[static_cast<std::size_t>(peer)] = room;
        return room;
    }

    /// into = the sum; `into` may be `own`.
    void add_up(std::span<std::byte> into, std::span<const std::byte> own, const Reduce& reduce) {
        terms_[static_cast<std::size_t>(self_)] = own;
        reduce.combine_tree(into, terms_);
    }

private:
    std::span<std::span<const std::byte>> terms_;  ///< by rank
    std::span<std::byte> rooms_;
    int self_ = 0;
    std::size_t segment_bytes_ = 0;
};

template <Wire W>
void reduce_scatter(W& wire, const ReduceScatterArgs& args) {
    struct Slot {
        std::size_t chunk = 0;
        PairwiseExchange<W> exchange;
        Terms terms;
    };
    const auto chunks = direct_chunks(wire, largest_bytes(args.input), args.segment_bytes);
    std::vector<Slot> slots(chunks.slots());
    Scratch scratch(args.scratch);
    for (auto& slot : slots) {
        slot.exchange = PairwiseExchange<W>(wire, scratch);
        slot.terms = Terms(wire.size(), wire.rank(), chunks.segment_bytes(), scratch);
    }
    const auto slice = [&](int block, std::size_t chunk) {
        const auto bytes = args.input[static_cast<std::size_t>(block)];
        const auto segment = chunks.segment(block, bytes.size(), chunk);
        return bytes.subspan(segment.offset, segment.bytes);
    };
    const auto start = [&](std::size_t index, std::size_t chunk) {
        auto& slot = slots[index];
        slot.chunk = chunk;
        slot.exchange.receive(
            [&](int peer) { return slot.terms.room(peer, slice(wire.rank(), chunk).size()); });
        slot.exchange.send([&](int peer) { return slice(peer, chunk); });
    };
    const auto finish = [&](std::size_t index, int) {
        auto& slot = slots[index];
        slot.exchange.wait_received();
        const auto where = chunks.segment(wire.rank(), args.output.size(), slot.chunk);
        slot.terms.add_up(args.output.subspan(where.offset, where.bytes),
                          slice(wire.rank(), slot.chunk), args.reduce);
        slot.exchange.wait_sent();
    };
    keep_in_flight(chunks, 1, start, finish);
}

}  // namespace guozhuang::direct
