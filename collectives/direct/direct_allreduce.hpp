// Direct-exchange allreduce: the reduce-scatter of reduce_scatter.hpp, then every rank sends its
// finished block to each peer. One chunk (a segment of every block) at a time goes through both
// halves while it is hot in cache, several are in flight.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005: Rabenseifner's two halves, each as a
// direct exchange.
//
//           rank 0          rank 1          rank 2
//   step 0  b1=0 -> 1       b2=1 -> 2       b0=2 -> 0
//   step 1  b2=0 -> 2       b0=1 -> 0       b1=2 -> 1
//   step 2  b0=0+1+2 -> 1   b1=0+1+2 -> 2   b2=0+1+2 -> 0
//   step 3  b0=0+1+2 -> 2   b1=0+1+2 -> 0   b2=0+1+2 -> 1
//
// With one block instead of p, rank 0 owns everything and adds up for all: the simplest parameter
// server, whose server is also a worker (M. Li, D. G. Andersen, J. W. Park et al.: Scaling
// distributed machine learning with the parameter server, OSDI 2014). It is there for comparison:
// 2(p-1) n bytes pass through rank 0.
//
//           rank 0           rank 1           rank 2           rank 3
//   step 0                   1 -> 0           2 -> 0           3 -> 0
//   step 1  0+1+(2+3) -> 1
//   step 2  0+1+(2+3) -> 2
//   step 3  0+1+(2+3) -> 3
//   end     0+1+(2+3)        0+1+(2+3)        0+1+(2+3)        0+1+(2+3)
//
// Cost: 2(p-1) alpha + (p-1)/p n (2 beta + gamma), in two steps of waiting where the ring has
// 2(p-1).
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once. The same bits as recursive doubling.
// Needs: allreduce_scratch_bytes: 2p-1 segments per chunk in flight.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/direct/direct_reduce_scatter.hpp"
#include "collectives/direct/pairwise_exchange.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/chunks.hpp"

namespace guozhuang::direct {

template <Wire W>
std::size_t allreduce_scratch_bytes(const W& wire, const Blocks& blocks,
                                    std::size_t segment_bytes) {
    const auto p = static_cast<std::size_t>(wire.size());
    const auto chunks = direct_chunks(wire, blocks.largest_bytes(), segment_bytes);
    const auto slot = PairwiseExchange<W>::scratch_bytes(wire.size()) +
                      padded_array<std::span<const std::byte>>(p) +
                      (2 * p - 1) * chunks.segment_bytes();
    return chunks.slots() * slot;
}

/// The work of one allreduce on one rank.
template <Wire W>
class DirectAllreduce {
public:
    DirectAllreduce(W& wire, const AllreduceArgs& args)
        : wire_(wire),
          args_(args),
          chunks_(direct_chunks(wire, args.blocks.largest_bytes(), args.segment_bytes)),
          slots_(chunks_.slots()) {
        Scratch scratch(args.scratch);
        for (auto& slot : slots_) {
            slot.exchange = PairwiseExchange<W>(wire, scratch);
            slot.terms = Terms(wire.size(), wire.rank(), chunks_.segment_bytes(), scratch);
            slot.rooms =
                scratch.cut(static_cast<std::size_t>(wire.size()) * chunks_.segment_bytes());
        }
    }

    void run() {
        keep_in_flight(
            chunks_, 2, [this](std::size_t slot, std::size_t chunk) { start(slots_[slot], chunk); },
            [this](std::size_t slot, int step) {
                step == 0 ? reduce(slots_[slot]) : collect(slots_[slot]);
            });
    }

private:
    /// A chunk in flight. A segment of block b that is in several runs of user memory is copied
    /// through its part of `rooms`.
    struct Slot {
        std::size_t chunk = 0;
        PairwiseExchange<W> exchange;
        Terms terms;
        std::span<std::byte> rooms;
    };

    Segment segment(const Slot& slot, int block) const {
        return chunks_.segment(block, args_.blocks.bytes(block), slot.chunk);
    }
    std::span<std::byte> room(const Slot& slot, int block) const {
        return slot.rooms.subspan(static_cast<std::size_t>(block) * chunks_.segment_bytes(),
                                  chunks_.segment_bytes());
    }
    std::span<std::byte> gathered(const Slot& slot, int block) const {
        return args_.blocks.gather(segment(slot, block), room(slot, block));
    }

    void start(Slot& slot, std::size_t chunk) {
        slot.chunk = chunk;
        const auto bytes = segment(slot, wire_.rank()).bytes;
        slot.exchange.receive([&](int peer) { return slot.terms.room(peer, bytes); });
        slot.exchange.send([&](int peer) { return gathered(slot, peer); });
    }

    void reduce(Slot& slot) {
        slot.exchange.wait_received();
        slot.exchange.wait_sent();
        slot.exchange.receive(
            [&](int peer) { return args_.blocks.landing(segment(slot, peer), room(slot, peer)); });
        const auto own = gathered(slot, wire_.rank());
        slot.terms.add_up(own, own, args_.reduce);
        args_.blocks.scatter(segment(slot, wire_.rank()), own);
        slot.exchange.send([&](int) { return own; });
    }

    void collect(Slot& slot) {
        slot.exchange.wait_received();
        slot.exchange.for_each([&](int peer) {
            const auto where = segment(slot, peer);
            args_.blocks.scatter(where, args_.blocks.landing(where, room(slot, peer)));
        });
        slot.exchange.wait_sent();
    }

    W& wire_;
    const AllreduceArgs& args_;
    Chunks chunks_;
    std::vector<Slot> slots_;
};

/// args.blocks: one block per rank, or fewer; ranks without a block own none.
template <Wire W>
void allreduce(W& wire, const AllreduceArgs& args) {
    DirectAllreduce<W>(wire, args).run();
}

/// The allreduce of a site in `blocks` blocks: one for each rank, or a single one, which rank 0
/// sums.
template <AllreduceSite Site>
void allreduce_of_blocks(Site& site, int blocks) {
    auto& wire = site.wire();
    auto args = site.cut(blocks);
    args.scratch = site.scratch(allreduce_scratch_bytes(wire, args.blocks, args.segment_bytes));
    allreduce(wire, args);
}

}  // namespace guozhuang::direct

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::direct> =
    [](AllreduceSite auto& site) { direct::allreduce_of_blocks(site, site.wire().size()); };
template <>
inline constexpr auto run_allreduce<Algorithm::parameter_server> =
    [](AllreduceSite auto& site) { direct::allreduce_of_blocks(site, 1); };

}  // namespace guozhuang
