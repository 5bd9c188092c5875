// Staged allreduce: reduce-scatter and all-gather through memory that all ranks have mapped. Every
// rank copies the blocks that it does not own to its room, adds up its own block from all rooms,
// and writes the sum over the contributions, to the room of each rank that has given one, which
// copies it from there. So the cache lines that bring a contribution go back with the sum. It works
// on three segments at a time: one is copied in, the one before added up, and the one before that
// copied out. The smallest bundles are left to symmetric_allreduce.hpp.
//
// Tensors that all ranks have mapped need not be staged: see in_place_allreduce.hpp. A rank with
// such tensors shows refs to them in the first round, instead of segments. Then the ranks reduce in
// place what all of them can reach, and stage the rest of the bundle, perhaps all of it.
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
// Cost: two waits for each segment (one more if some have shown refs), for which the next segment
// leaves time; (p-1)/p n each is copied in, added up, written back and copied out: no message,
// nothing allocated.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once. The same bits as recursive doubling.
// Needs: staged_scratch_bytes; segments are shortened to what a room holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/staged/in_place_allreduce.hpp"
#include "collectives/staged/sections.hpp"
#include "collectives/staged/symmetric_allreduce.hpp"
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
          blocks_(&args.blocks),
          chunks_(cut()),
          terms_(scratch_.cut_array<std::span<const std::byte>>(
              static_cast<std::size_t>(group.size()))),
          by_rank_(
              scratch_.cut_array<std::span<std::byte>>(static_cast<std::size_t>(group.size()))) {}

    bool run() {
        if (blocks_->total_bytes() == 0) return true;
        first_ = group_.round();
        group_.publish(regions_.show() ? 0 : stage_out(0));
        if (!group_.await(first_)) return false;
        if (regions_.any_rank_has_shown()) leave_out_what_is_mapped();
        const auto chunks = chunks_.count();
        for (std::size_t step = 1; chunks > 0 && step < chunks + 2; ++step) {
            if (step < chunks) group_.publish(stage_out(step));
            if (step <= chunks) reduce(step - 1);
            if (step >= 2) copy_in(step - 2);
        }
        return true;
    }

private:
    Chunks cut() const {
        const auto room = group_.room(group_.rank(), group_.round()).size();
        return {blocks_->largest_bytes(),
                std::min(args_.segment_bytes, section_limit_bytes(room, group_.size()))};
    }
    Segment segment(int block, std::size_t chunk) const noexcept {
        return chunks_.segment(block, blocks_->bytes(block), chunk);
    }
    /// The part of a rank's room that a block's segment goes through.
    std::span<std::byte> part(int peer, std::uint64_t round, int block) const {
        return section(group_.room(peer, round), block, chunks_.segment_bytes());
    }

    /// After the round of the refs: stages the first segment of the tensors that are not reduced in
    /// place, and meanwhile reduces the others in place.
    void leave_out_what_is_mapped() {
        const bool in_place = regions_.find_common();
        if (in_place) {
            args_.rest->assign(regions_.rest(), args_.reduce.element_bytes(), group_.size(),
                               Cut::bundle);
            blocks_ = args_.rest;
            chunks_ = cut();
        }
        const auto shown = std::exchange(first_, group_.round());
        if (chunks_.count() > 0) group_.publish(stage_out(0));
        if (!in_place) return;
        group_.answer(shown,
                      InPlaceAllreduce<P>(group_, regions_, args_.reduce, terms_, by_rank_).run());
        group_.await_answers(shown);
    }

    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        for (int block = 0; block < group_.size(); ++block) {
            if (block == group_.rank()) continue;
            const auto out = part(group_.rank(), group_.round(), block);
            const auto in = segment(block, chunk);
            blocks_->for_each_run(in, [&](std::span<const std::byte> run, std::size_t at) {
                group_.put(out.subspan(at), run);
            });
            bytes += in.bytes;
        }
        return bytes;
    }

    void reduce(std::size_t chunk) {
        const auto round = first_ + chunk;
        group_.await(round);
        const auto own = segment(group_.rank(), chunk);
        for (int peer = 0; peer < group_.size(); ++peer)
            by_rank_[static_cast<std::size_t>(peer)] = part(peer, round, group_.rank());
        blocks_->for_each_run(own, [&](std::span<std::byte> run, std::size_t at) {
            for (std::size_t done = 0; done < run.size(); done += tile_bytes)
                add_up(run.subspan(done, std::min(tile_bytes, run.size() - done)), at + done);
        });
        group_.answer(round, own.bytes * static_cast<std::size_t>(group_.size() - 1));
    }

    /// `at`: where the tile lies in this rank's segment.
    void add_up(std::span<std::byte> tile, std::size_t at) {
        for (std::size_t peer = 0; peer < terms_.size(); ++peer)
            terms_[peer] = by_rank_[peer].subspan(at, tile.size());
        const auto self = static_cast<std::size_t>(group_.rank());
        terms_[self] = tile;
        args_.reduce.combine_tree(tile, terms_);
        for (std::size_t peer = 0; peer < by_rank_.size(); ++peer)
            if (peer != self) group_.put(by_rank_[peer].subspan(at), tile);
    }

    void copy_in(std::size_t chunk) {
        const auto round = first_ + chunk;
        group_.await_answers(round);
        for (int block = 0; block < group_.size(); ++block) {
            if (block == group_.rank()) continue;
            const auto in = part(group_.rank(), round, block);
            blocks_->for_each_run(segment(block, chunk),
                                  [&](std::span<std::byte> run, std::size_t at) {
                                      std::memcpy(run.data(), in.data() + at, run.size());
                                  });
        }
    }

    /// The size of tiles: a tile of the sum is in the first-level cache when it is written to the
    /// others.
    static constexpr std::size_t tile_bytes = std::size_t{16} << 10;

    P& group_;
    const AllreduceArgs& args_;
    Scratch scratch_;
    TensorRegions<P> regions_;
    const Blocks* blocks_;  ///< the blocks that go through the rooms
    Chunks chunks_;
    std::uint64_t first_ = 0;                      ///< the round of chunk 0
    std::span<std::span<const std::byte>> terms_;  ///< by rank
    std::span<std::span<std::byte>> by_rank_;      ///< by rank
};

/// args.blocks: cut in any way, the same on all ranks. args.tensors: those of the blocks.
/// args.rest: not null. Returns false if its first round was an offer that not all ranks made: then
/// nothing has happened.
template <PeerMemory P>
bool staged_allreduce(P& group, const AllreduceArgs& args) {
    const auto bytes = args.blocks.total_bytes();
    if (bytes > symmetric_limit_bytes(group)) return StagedAllreduce<P>(group, args).run();
    const auto terms =
        Scratch(args.scratch)
            .cut_array<std::span<const std::byte>>(static_cast<std::size_t>(group.size()));
    return bytes == 0 || symmetric_allreduce(group, args.tensors, bytes, args.reduce, terms);
}

}  // namespace guozhuang::staged

namespace guozhuang {

namespace staged {
/// The same for a site.
bool allreduce_at(AllreduceSite auto& site) {
    return site.stage(
        site.cut(site.wire().size(), Cut::bundle), [&](PeerMemory auto& group, AllreduceArgs args) {
            using P = std::remove_reference_t<decltype(group)>;
            args.scratch = site.scratch(staged_scratch_bytes<P>(group.size(), args.tensors.size()));
            return staged_allreduce(group, args);
        });
}
}  // namespace staged

template <>
inline constexpr auto run_allreduce<Algorithm::staged> =
    [](AllreduceSite auto& site) { staged::allreduce_at(site); };

}  // namespace guozhuang
