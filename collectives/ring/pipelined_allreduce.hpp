// Ring allreduce, fast: the hops of allreduce.hpp, for one chunk (a segment of every block) at a
// time, which goes from its first hop to its last while it is hot in cache. Several chunks are in
// flight and take turns, so the wire is busy while one of them is reduced.
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, J.
// Parallel Distrib. Comput. 69(2), 2009.
//
// In each hop a rank sends what arrived in the hop before, so a chunk needs two buffers per rank:
// one is sent while the other one fills.
// Figure: 2 ranks, 2 chunks (a: first half of each block, b: second half):
//
//           rank 0         rank 1
//   step 0  b1a=0 -> 1     b0a=1 -> 0
//   step 1  b1b=0 -> 1     b0b=1 -> 0
//   step 2  b0a=1+0 -> 1   b1a=0+1 -> 0
//   step 3  b0b=1+0 -> 1   b1b=0+1 -> 0
//
// Cost: 2(p-1) alpha per chunk, of which all but the first chunk's overlap;
// (p-1)/p n (2 beta + gamma). User memory is written once.
// Order: that of the plain version bit for bit, whatever the segment size: block b is b+1, then
// b+2, ... and b last, on elements.
// Needs: pipelined_scratch_bytes: two segments per chunk in flight.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/ring/ring_reduce_scatter.hpp"

namespace guozhuang::ring {

template <Wire W>
std::size_t pipelined_scratch_bytes(const W& wire, const Blocks& blocks,
                                    std::size_t segment_bytes) {
    const Chunks chunks(blocks.largest_bytes(), segment_bytes, wire.window_bytes());
    return chunks.slots() * 2 * padded(chunks.segment_bytes());
}

/// The work of one pipelined_allreduce on one rank; or of one ring among several that share the
/// blocks, which the hierarchical allreduce drives.
template <Wire W>
class PipelinedRing {
public:
    /// The ring's blocks begin with `first_block`; there is one for each rank, of at least two. Its
    /// buffers are cut from `scratch`. The arguments must outlive this.
    PipelinedRing(W& wire, const AllreduceArgs& args, Scratch& scratch, int first_block = 0)
        : wire_(wire),
          args_(args),
          first_block_(first_block),
          chunks_(args.blocks.largest_bytes(), args.segment_bytes, wire.window_bytes()),
          sum_hops_(wire.size() - 1),
          slots_(chunks_.slots()) {
        for (auto& slot : slots_)
            for (auto& room : slot.rooms) room = scratch.cut(chunks_.segment_bytes());
    }

    void run() {
        keep_in_flight(
            chunks_, hops(), [this](std::size_t slot, std::size_t chunk) { start(slot, chunk); },
            [this](std::size_t slot, int hop) { advance(slot, hop); });
    }

    int hops() const noexcept { return 2 * sum_hops_; }
    /// Starts a chunk in a slot that is free.
    void start(std::size_t slot, std::size_t chunk) { start(slots_[slot], chunk); }
    /// Ends a hop of the chunk in that slot and begins the next. After the last one the chunk's
    /// results are in place, and the slot is free.
    void advance(std::size_t slot, int hop) { advance(slots_[slot], hop); }

private:
    /// A chunk in flight. Hop h receives it into user memory or rooms[h % 2], and hop h + 1 sends
    /// it from there.
    struct Slot {
        std::size_t chunk = 0;
        std::array<std::span<std::byte>, 2> rooms;
        std::span<std::byte> arriving;
        typename W::Ticket incoming{}, outgoing{};
    };

    void start(Slot& slot, std::size_t chunk) {
        slot.chunk = chunk;
        receive(slot, 0);
        send(slot, args_.blocks.gather(
                       segment(slot, reduce_scatter_hop(wire_.rank(), 0, wire_.size()).send),
                       slot.rooms[1]));
    }

    /// Sends the next segment before it waits for the previous send, so that the right neighbour
    /// need not wait for the previous one.
    void advance(Slot& slot, int hop) {
        wire_.wait(slot.incoming);
        const auto onward = absorb(slot, hop, slot.arriving);
        auto earlier = slot.outgoing;
        slot.outgoing = {};
        const bool last = hop + 1 == hops();
        if (!last) send(slot, onward);
        wire_.wait(earlier);
        if (!last) receive(slot, hop + 1);
    }

    int arriving_block(int hop) const {
        return hop < sum_hops_
                   ? reduce_scatter_hop(wire_.rank(), hop, wire_.size()).receive
                   : all_gather_hop(wire_.rank(), hop - sum_hops_, wire_.size()).receive;
    }

    Segment segment(const Slot& slot, int ring_block) const {
        const int block = first_block_ + ring_block;
        return chunks_.segment(block, args_.blocks.bytes(block), slot.chunk);
    }

    void receive(Slot& slot, int hop) {
        const auto arriving = segment(slot, arriving_block(hop));
        const auto room = slot.rooms[static_cast<std::size_t>(hop) % 2];
        // Only a result may overwrite this rank's own term; a partial sum goes to a room.
        slot.arriving =
            hop < sum_hops_ ? room.first(arriving.bytes) : args_.blocks.landing(arriving, room);
        if (!slot.arriving.empty()) slot.incoming = wire_.receive(slot.arriving, left(wire_));
    }

    void send(Slot& slot, std::span<const std::byte> bytes) {
        if (!bytes.empty()) slot.outgoing = wire_.send(bytes, right(wire_));
    }

    /// Does the work of hop `hop` on what has arrived. Returns the bytes to send in the next hop.
    std::span<std::byte> absorb(const Slot& slot, int hop, std::span<std::byte> arrived) {
        const auto where = segment(slot, arriving_block(hop));
        if (hop >= sum_hops_) {
            args_.blocks.scatter(where, arrived);
            return arrived;
        }
        return hop + 1 < sum_hops_ ? add(where, arrived) : add_last(where, arrived);
    }

    /// arrived += this rank's term.
    std::span<std::byte> add(const Segment& where, std::span<std::byte> arrived) {
        args_.blocks.for_each_run(where, [&](std::span<std::byte> mine, std::size_t at) {
            const auto sum = arrived.subspan(at, mine.size());
            args_.reduce.combine(sum, sum, mine);
        });
        return arrived;
    }

    /// The same for this rank's own block. Its sum is then complete: finishes it and writes it to
    /// user memory.
    std::span<std::byte> add_last(const Segment& where, std::span<std::byte> arrived) {
        if (const auto mine = args_.blocks.in_place(where); !mine.empty()) {
            args_.reduce.combine(mine, arrived, mine);
            args_.reduce.finish(mine);
            return mine;
        }
        add(where, arrived);
        args_.reduce.finish(arrived);
        args_.blocks.scatter(where, arrived);
        return arrived;
    }

    W& wire_;
    const AllreduceArgs& args_;
    int first_block_;
    Chunks chunks_;
    int sum_hops_;
    std::vector<Slot> slots_;
};

/// args.blocks: one per rank.
template <Wire W>
void pipelined_allreduce(W& wire, const AllreduceArgs& args) {
    if (wire.size() > 1) {
        Scratch scratch(args.scratch);
        PipelinedRing<W>(wire, args, scratch).run();
    } else {
        args.blocks.for_each_run(args.blocks.whole(0), [&](std::span<std::byte> run, std::size_t) {
            args.reduce.finish(run);
        });
    }
}

}  // namespace guozhuang::ring

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::ring> = [](AllreduceSite auto& site) {
    auto& wire = site.ring();
    auto args = site.cut(wire.size());
    args.scratch =
        site.scratch(ring::pipelined_scratch_bytes(wire, args.blocks, args.segment_bytes));
    ring::pipelined_allreduce(wire, args);
};

}  // namespace guozhuang
