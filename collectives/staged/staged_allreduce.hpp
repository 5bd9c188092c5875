// Staged direct allreduce: reduce-scatter and all-gather through memory that all ranks have mapped.
// Every rank copies the blocks it does not own to its stage, adds up its own block from all stages,
// shows the sum on its stage, and fetches the other sums. Segment by segment, three of them under
// way: a round fetches one, adds up the next and gives the one after, all while it is hot in cache.
//
// Tensors that themselves lie in such memory, on all ranks, need not be staged: see
// in_place_allreduce.hpp. A rank some of whose own do shows where in the first round, in the place
// of segments. In the next, what all ranks can reach is reduced in place, and the rest of the
// bundle, which may be all of it, begins with its segments.
//
// Reduce-scatter by direct exchange, then all-gather (R. Thakur, R. Rabenseifner, W. Gropp:
// Optimization of collective communication operations in MPICH, Int. J. High Perform. Comput. Appl.
// 19(1), 2005), with loads and stores in the place of messages (R. L. Graham, G. Shipman: MPI
// support for multi-core architectures: optimized shared memory collectives, EuroPVM/MPI 2008).
//
//           rank 0                       rank 1                       rank 2
//   step 0  b1=0 b2=0                    b0=1 b2=1                    b0=2 b1=2
//   step 1  b0=0+1+2                     b1=0+1+2                     b2=0+1+2
//   end     b0=0+1+2 b1=0+1+2 b2=0+1+2   b0=0+1+2 b1=0+1+2 b2=0+1+2   b0=0+1+2 b1=0+1+2 b2=0+1+2
//
// Cost: segments + 2 rounds of waiting (one more if some have shown places); (p-1)/p n each is
// copied in, added up and copied out: no message, nothing allocated.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once. The same bits as recursive doubling.
// Needs: staged_scratch_bytes, and on the stage two rooms for p+1 segments and a head; segments are
// shortened to what fits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/allreduce_plan.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/staged/in_place_allreduce.hpp"
#include "collectives/staged/places.hpp"
#include "collectives/staged/stage_layout.hpp"

namespace guozhuang::direct {

template <PeerMemory P>
std::size_t staged_scratch_bytes(int ranks, std::size_t members) {
    return stage_scratch_bytes(ranks) +
           padded_array<std::span<std::byte>>(static_cast<std::size_t>(ranks)) +
           Places<P>::scratch_bytes(members);
}

/// The work of one allreduce on one rank.
template <PeerMemory P>
class StagedAllreduce {
public:
    StagedAllreduce(P& peers, const AllreducePlan& plan)
        : peers_(peers),
          plan_(plan),
          scratch_(plan.scratch),
          places_(peers, plan.members, scratch_),
          layout_(peers.stage(peers.rank()).size(), peers.size()),
          chunks_(plan.blocks.largest_bytes(),
                  std::min(plan.segment_bytes, layout_.segment_bytes())),
          blocks_(&plan.blocks),
          terms_(scratch_.cut_array<std::span<const std::byte>>(
              static_cast<std::size_t>(peers.size()))),
          parts_(scratch_.cut_array<std::span<std::byte>>(static_cast<std::size_t>(peers.size()))) {
    }

    void run() {
        if (chunks_.count() == 0) return;
        peers_.publish(places_.show() ? 0 : give(0));
        peers_.await();
        if (places_.are_somewhere()) {
            const bool in_place = places_.are_everywhere();
            if (in_place) turn_to_rest();
            auto bytes = give(0);
            if (in_place)
                bytes += InPlaceAllreduce<P>(peers_, places_, plan_.reduce, terms_, parts_).run();
            peers_.publish(bytes);
            peers_.await();
        }
        const auto chunks = chunks_.count();
        for (std::size_t step = 1; chunks > 0 && step < chunks + 2; ++step) {
            if (step > 1) peers_.await();
            std::size_t bytes = 0;
            if (step >= 2) fetch(step - 2);
            if (step - 1 < chunks) bytes += reduce(step - 1);
            if (step < chunks) bytes += give(step);
            peers_.publish(bytes);
        }
    }

private:
    Segment segment(int block, std::size_t chunk) const noexcept {
        return chunks_.segment(block, blocks_->bytes(block), chunk);
    }
    std::span<std::byte> own_stage() { return peers_.stage(peers_.rank()); }

    /// From now on this is about what is not reduced in place.
    void turn_to_rest() {
        plan_.rest->assign(places_.rest(), plan_.reduce.element_bytes(), peers_.size());
        blocks_ = plan_.rest;
        chunks_ = Chunks(blocks_->largest_bytes(),
                         std::min(plan_.segment_bytes, layout_.segment_bytes()));
    }

    std::size_t give(std::size_t chunk) {
        std::size_t bytes = 0;
        for (int block = 0; block < peers_.size(); ++block) {
            if (block == peers_.rank()) continue;
            const auto out = layout_.given(own_stage(), peers_.round(), block);
            bytes += copy_out(segment(block, chunk), out);
        }
        return bytes;
    }

    std::size_t copy_out(const Segment& segment, std::span<std::byte> out) {
        blocks_->for_each_run(segment, [&](std::span<const std::byte> run, std::size_t at) {
            peers_.put(out.subspan(at), run);
        });
        return segment.bytes;
    }

    std::size_t reduce(std::size_t chunk) {
        const auto own = segment(peers_.rank(), chunk);
        const auto out = layout_.reduced(own_stage(), peers_.round());
        blocks_->for_each_run(own, [&](std::span<std::byte> run, std::size_t at) {
            for (std::size_t done = 0; done < run.size(); done += piece_bytes) {
                const auto piece = run.subspan(done, std::min(piece_bytes, run.size() - done));
                add_up(piece, at + done);
                peers_.put(out.subspan(at + done), piece);
            }
        });
        return own.bytes;
    }

    /// `at`: where the piece lies in this rank's segment.
    void add_up(std::span<std::byte> piece, std::size_t at) {
        for (int peer = 0; peer < peers_.size(); ++peer) {
            const auto given = layout_.given(peers_.stage(peer), peers_.round() - 1, peers_.rank());
            terms_[static_cast<std::size_t>(peer)] =
                peer == peers_.rank() ? piece : given.subspan(at, piece.size());
        }
        plan_.reduce.combine_tree(piece, terms_);
    }

    void fetch(std::size_t chunk) {
        for (int block = 0; block < peers_.size(); ++block) {
            if (block == peers_.rank()) continue;
            const auto in = layout_.reduced(peers_.stage(block), peers_.round() - 1);
            blocks_->for_each_run(segment(block, chunk),
                                  [&](std::span<std::byte> run, std::size_t at) {
                                      std::memcpy(run.data(), in.data() + at, run.size());
                                  });
        }
    }

    /// A piece of the sum is shown while it is still in the first-level cache.
    static constexpr std::size_t piece_bytes = std::size_t{16} << 10;

    P& peers_;
    const AllreducePlan& plan_;
    Scratch scratch_;
    Places<P> places_;
    StageLayout layout_;
    Chunks chunks_;
    const Blocks* blocks_;                         ///< what is staged
    std::span<std::span<const std::byte>> terms_;  ///< by rank
    std::span<std::span<std::byte>> parts_;        ///< by rank
};

/// plan.members: those of the blocks. plan.rest: not null.
template <PeerMemory P>
void staged_allreduce(P& peers, const AllreducePlan& plan) {
    StagedAllreduce<P>(peers, plan).run();
}

}  // namespace guozhuang::direct
