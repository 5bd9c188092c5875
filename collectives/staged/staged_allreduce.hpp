// Staged direct allreduce: reduce-scatter and all-gather through memory that all ranks have mapped.
// Every rank copies the blocks that it does not own to its stage, adds up its own block from all
// stages, publishes the sum on its stage, and copies in the other sums. It works on three segments
// at a time: a round copies in one, adds up the next and stages out the one after, all hot in
// cache.
//
// Tensors that all ranks have mapped need not be staged: see in_place_allreduce.hpp. A rank with
// such tensors writes refs to them in the first round, instead of segments. In the next round the
// ranks reduce in place what all of them can reach, and stage the rest of the bundle, perhaps all
// of it.
//
// Reduce-scatter by direct exchange, then all-gather (R. Thakur, R. Rabenseifner, W. Gropp:
// Optimization of collective communication operations in MPICH, Int. J. High Perform. Comput. Appl.
// 19(1), 2005), with loads and stores instead of messages (R. L. Graham, G. Shipman: MPI support
// for multi-core architectures: optimized shared memory collectives, EuroPVM/MPI 2008).
//
//           rank 0                       rank 1                       rank 2
//   step 0  b1=0 b2=0                    b0=1 b2=1                    b0=2 b1=2
//   step 1  b0=0+1+2                     b1=0+1+2                     b2=0+1+2
//   end     b0=0+1+2 b1=0+1+2 b2=0+1+2   b0=0+1+2 b1=0+1+2 b2=0+1+2   b0=0+1+2 b1=0+1+2 b2=0+1+2
//
// Cost: segments + 2 rounds of waiting (one more if some have written refs); (p-1)/p n each is
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

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/staged/in_place_allreduce.hpp"
#include "collectives/staged/stage_layout.hpp"
#include "collectives/staged/tensor_regions.hpp"

namespace guozhuang::staged {

template <PeerMemory P>
std::size_t staged_scratch_bytes(int ranks, std::size_t tensors) {
    return stage_scratch_bytes(ranks) +
           padded_array<std::span<std::byte>>(static_cast<std::size_t>(ranks)) +
           TensorRegions<P>::scratch_bytes(tensors);
}

/// The work of one allreduce on one rank.
template <PeerMemory P>
class StagedAllreduce {
public:
    StagedAllreduce(P& group, const AllreduceArgs& args)
        : group_(group),
          args_(args),
          scratch_(args.scratch),
          regions_(group, args.tensors, scratch_),
          layout_(group.stage(group.rank()).size(), group.size()),
          chunks_(args.blocks.largest_bytes(),
                  std::min(args.segment_bytes, layout_.segment_bytes())),
          blocks_(&args.blocks),
          terms_(scratch_.cut_array<std::span<const std::byte>>(
              static_cast<std::size_t>(group.size()))),
          by_rank_(
              scratch_.cut_array<std::span<std::byte>>(static_cast<std::size_t>(group.size()))) {}

    void run() {
        if (chunks_.count() == 0) return;
        group_.publish(regions_.stage_refs() ? 0 : stage_out(0));
        group_.await();
        if (regions_.any_rank_has_refs()) {
            const bool in_place = regions_.find_common();
            if (in_place) turn_to_rest();
            auto bytes = stage_out(0);
            if (in_place)
                bytes +=
                    InPlaceAllreduce<P>(group_, regions_, args_.reduce, terms_, by_rank_).run();
            group_.publish(bytes);
            group_.await();
        }
        const auto chunks = chunks_.count();
        for (std::size_t step = 1; chunks > 0 && step < chunks + 2; ++step) {
            if (step > 1) group_.await();
            std::size_t bytes = 0;
            if (step >= 2) copy_in(step - 2);
            if (step - 1 < chunks) bytes += reduce(step - 1);
            if (step < chunks) bytes += stage_out(step);
            group_.publish(bytes);
        }
    }

private:
    Segment segment(int block, std::size_t chunk) const noexcept {
        return chunks_.segment(block, blocks_->bytes(block), chunk);
    }
    std::span<std::byte> own_stage() { return group_.stage(group_.rank()); }

    /// From here on works on what is not reduced in place.
    void turn_to_rest() {
        args_.rest->assign(regions_.rest(), args_.reduce.element_bytes(), group_.size(),
                           Cut::bundle);
        blocks_ = args_.rest;
        chunks_ = Chunks(blocks_->largest_bytes(),
                         std::min(args_.segment_bytes, layout_.segment_bytes()));
    }

    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        for (int block = 0; block < group_.size(); ++block) {
            if (block == group_.rank()) continue;
            const auto out = layout_.contributions(own_stage(), group_.round(), block);
            bytes += copy_out(segment(block, chunk), out);
        }
        return bytes;
    }

    std::size_t copy_out(const Segment& segment, std::span<std::byte> out) {
        blocks_->for_each_run(segment, [&](std::span<const std::byte> run, std::size_t at) {
            group_.put(out.subspan(at), run);
        });
        return segment.bytes;
    }

    std::size_t reduce(std::size_t chunk) {
        const auto own = segment(group_.rank(), chunk);
        const auto out = layout_.reduced(own_stage(), group_.round());
        blocks_->for_each_run(own, [&](std::span<std::byte> run, std::size_t at) {
            for (std::size_t done = 0; done < run.size(); done += tile_bytes) {
                const auto tile = run.subspan(done, std::min(tile_bytes, run.size() - done));
                add_up(tile, at + done);
                group_.put(out.subspan(at + done), tile);
            }
        });
        return own.bytes;
    }

    /// `at`: where the tile lies in this rank's segment.
    void add_up(std::span<std::byte> tile, std::size_t at) {
        for (int peer = 0; peer < group_.size(); ++peer) {
            const auto contribution =
                layout_.contributions(group_.stage(peer), group_.round() - 1, group_.rank());
            terms_[static_cast<std::size_t>(peer)] =
                peer == group_.rank() ? tile : contribution.subspan(at, tile.size());
        }
        args_.reduce.combine_tree(tile, terms_);
    }

    void copy_in(std::size_t chunk) {
        for (int block = 0; block < group_.size(); ++block) {
            if (block == group_.rank()) continue;
            const auto in = layout_.reduced(group_.stage(block), group_.round() - 1);
            blocks_->for_each_run(segment(block, chunk),
                                  [&](std::span<std::byte> run, std::size_t at) {
                                      std::memcpy(run.data(), in.data() + at, run.size());
                                  });
        }
    }

    /// The size of tiles: a tile of the sum is put on the stage from the first-level cache.
    static constexpr std::size_t tile_bytes = std::size_t{16} << 10;

    P& group_;
    const AllreduceArgs& args_;
    Scratch scratch_;
    TensorRegions<P> regions_;
    StageLayout layout_;
    Chunks chunks_;
    const Blocks* blocks_;                         ///< what goes through the stages
    std::span<std::span<const std::byte>> terms_;  ///< by rank
    std::span<std::span<std::byte>> by_rank_;      ///< by rank
};

/// args.blocks: cut in any way, the same on all ranks. args.tensors: those of the blocks.
/// args.rest: not null.
template <PeerMemory P>
void staged_allreduce(P& group, const AllreduceArgs& args) {
    StagedAllreduce<P>(group, args).run();
}

}  // namespace guozhuang::staged

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::staged> = [](AllreduceSite auto& site) {
    site.stage(
        site.cut(site.wire().size(), Cut::bundle), [&](PeerMemory auto& group, AllreduceArgs args) {
            using P = std::remove_reference_t<decltype(group)>;
            args.scratch =
                site.scratch(staged::staged_scratch_bytes<P>(group.size(), args.tensors.size()));
            staged::staged_allreduce(group, args);
        });
};

}  // namespace guozhuang
