// Binomial tree broadcast: a rank that has the data passes it on to ranks at halving distances, the
// farthest first, so the number of ranks that have it doubles in each step. Large data travels in
// segments: a rank passes one on as soon as it has it, with several in flight.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005.
//
//           rank 0   rank 1   rank 2   rank 3   rank 4   rank 5   rank 6
//   step 0           x -> 5
//   step 1           x -> 3                              x -> 0
//   step 2           x -> 2            x -> 4            x -> 6
//   end     x        x        x        x        x        x        x
//
// Cost: ceil(log2 p) (alpha + n beta); with s segments about (s - 1 + ceil(log2 p)) steps at the
// root's rate of ceil(log2 p) segments each.
// Needs: broadcast_scratch_bytes: one segment per chunk in flight.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/wire.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::tree {

struct BroadcastArgs {
    /// The bundle as one block: the input at the root, the output elsewhere.
    const Blocks& blocks;
    /// Memory of at least broadcast_scratch_bytes, aligned to scratch_alignment.
    std::span<std::byte> scratch;
    std::size_t segment_bytes = 0;
    int root = 0;
};

template <Wire W>
std::size_t broadcast_scratch_bytes(const W& wire, const Blocks& blocks,
                                    std::size_t segment_bytes) {
    const Chunks chunks(blocks.largest_bytes(), segment_bytes, wire.window_bytes());
    return chunks.slots() * chunks.segment_bytes();
}

/// A rank's node of the tree. With ranks counted from the root, rank v receives from v with its
/// lowest set bit cleared, and sends to v + m for every power of two m below that bit.
struct Node {
    int relative = 0;  ///< rank counted from the root
    /// The lowest set bit of `relative`; at the root the smallest power of two not below the size.
    int reach = 1;
};

constexpr Node node_of(int rank, int root, int size) noexcept {
    const int relative = (rank - root + size) % size;
    int reach = 1;
    while (reach < size && (relative & reach) == 0) reach *= 2;
    return {relative, reach};
}

/// The work of one broadcast on one rank.
template <Wire W>
class Broadcast {
public:
    Broadcast(W& wire, const BroadcastArgs& args)
        : wire_(wire),
          args_(args),
          chunks_(args.blocks.largest_bytes(), args.segment_bytes, wire.window_bytes()),
          node_(node_of(wire.rank(), args.root, wire.size())),
          slots_(chunks_.slots()) {
        Scratch scratch(args.scratch);
        for (auto& slot : slots_) slot.room = scratch.cut(chunks_.segment_bytes());
    }

    void run() {
        keep_in_flight(
            chunks_, 2, [this](std::size_t slot, std::size_t chunk) { start(slots_[slot], chunk); },
            [this](std::size_t slot, int step) {
                step == 0 ? pass_on(slots_[slot]) : complete(slots_[slot]);
            });
    }

private:
    struct Slot {
        Segment segment;
        std::span<std::byte> room;
        std::span<std::byte> bytes;  ///< of the segment: in place, or in a room
        typename W::Ticket incoming{};
        std::array<typename W::Ticket, 32> outgoing{};  ///< one per power of two
    };

    int absolute(int relative) const { return (relative + args_.root) % wire_.size(); }

    void start(Slot& slot, std::size_t chunk) {
        slot.segment = chunks_.segment(0, args_.blocks.bytes(0), chunk);
        if (node_.relative == 0) {
            slot.bytes = args_.blocks.gather(slot.segment, slot.room);
        } else {
            slot.bytes = args_.blocks.landing(slot.segment, slot.room);
            slot.incoming = wire_.receive(slot.bytes, absolute(node_.relative - node_.reach));
        }
    }

    void pass_on(Slot& slot) {
        wire_.wait(slot.incoming);
        std::size_t sent = 0;
        for (int distance = node_.reach / 2; distance > 0; distance /= 2) {
            if (node_.relative + distance >= wire_.size()) continue;
            slot.outgoing[sent++] = wire_.send(slot.bytes, absolute(node_.relative + distance));
        }
        if (node_.relative != 0) args_.blocks.scatter(slot.segment, slot.bytes);
    }

    void complete(Slot& slot) {
        for (auto& ticket : slot.outgoing) {
            wire_.wait(ticket);
            ticket = {};
        }
    }

    W& wire_;
    const BroadcastArgs& args_;
    Chunks chunks_;
    Node node_;
    std::vector<Slot> slots_;
};

template <Wire W>
void broadcast(W& wire, const BroadcastArgs& args) {
    if (wire.size() > 1) Broadcast<W>(wire, args).run();
}

}  // namespace guozhuang::tree
