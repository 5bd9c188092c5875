// Hierarchical allreduce, for ranks on several hosts, equally many on each. First reduce-scatter
// within each host, through memory that its ranks have mapped; then for each local rank a ring
// across the hosts for its share, all rings side by side; then all-gather within each host. All of
// it goes segment by segment: while messages of some chunks travel, others are added up and copied
// in.
//
// The scheme is the 2D-torus allreduce (H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y.
// Kageyama: Massively distributed SGD: ImageNet/ResNet-50 training in a flash, arXiv:1811.05233,
// 2018; as BlueConnect for any number of levels: M. Cho, U. Finkler, D. Kung, H. Hunter, MLSys
// 2019). Within a host it is the staged allreduce (staged/staged_allreduce.hpp), across hosts the
// pipelined ring (ring/pipelined_allreduce.hpp).
//
// With L ranks on each of H hosts there are L H blocks. Local rank l owns blocks l H to l H + H-1;
// each rank of its ring owns one of them.
// Figure: ranks 0 and 1 on one host, 2 and 3 on the other. In steps 0 and 3 a cell shows what a
// rank writes to its stage.
//
//           rank 0              rank 1              rank 2              rank 3
//   step 0  b2=0                b0=1                b2=2                b0=3
//           b3=0                b1=1                b3=2                b1=3
//   step 1  b1=0+1 -> 2         b3=0+1 -> 3         b0=2+3 -> 0         b2=2+3 -> 1
//   step 2  b0=2+3+(0+1) -> 2   b2=2+3+(0+1) -> 3   b1=0+1+(2+3) -> 0   b3=0+1+(2+3) -> 1
//   step 3  b0=2+3+(0+1)        b2=2+3+(0+1)        b0=2+3+(0+1)        b2=2+3+(0+1)
//           b1=0+1+(2+3)        b3=0+1+(2+3)        b1=0+1+(2+3)        b3=0+1+(2+3)
//
// Cost: segments + chunks in flight (3 on a short link) rounds within the host, two for a lone
// segment, and 2(H-1) alpha per chunk, of which most overlap; (L-1)/L n beta copied in, as much
// fetched, n gamma added up within; per rank (H-1)/H n/L (2 beta + gamma) across, so the hosts'
// links carry what one ring's would, in L messages side by side.
// Order: the balanced binary tree over the ranks of each host, rounded to elements once; those sums
// as in the ring, block h of a rank's being host h+1, then h+2, ... and h last, on elements: f16
// and bf16 are rounded once per host.
// Needs: allreduce_scratch_bytes, and rooms for L times H segments; segments
// are shortened to what fits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "collectives/staged/sections.hpp"

namespace guozhuang::hierarchical {

/// With shorter segments the messages across hosts would be too many and too short.
inline constexpr std::size_t least_segment_bytes = std::size_t{8} << 10;

/// The longest segment that fits the room, for this many ranks on each of this many hosts; 0 if the
/// room is too small.
constexpr std::size_t segment_limit_bytes(std::size_t room_bytes, int local_ranks,
                                          int hosts) noexcept {
    return staged::section_limit_bytes(staged::section_limit_bytes(room_bytes, local_ranks), hosts);
}

template <PeerMemory P, Wire W>
std::size_t segment_bytes(P& local, W& across, std::size_t wanted_bytes) {
    const auto room = local.room(local.rank(), local.round()).size();
    return std::min(wanted_bytes, segment_limit_bytes(room, local.size(), across.size()));
}

template <PeerMemory P, Wire W>
std::size_t allreduce_scratch_bytes(P& local, W& across, const Blocks& blocks,
                                    std::size_t wanted_bytes) {
    return staged::stage_scratch_bytes(local.size()) +
           ring::pipelined_scratch_bytes(across, blocks,
                                         segment_bytes(local, across, wanted_bytes));
}

/// The work of one allreduce on one rank.
template <PeerMemory P, Wire W>
class Allreduce {
public:
    Allreduce(P& local, W& across, const AllreduceArgs& args, const Reduce& within)
        : local_(local),
          within_(within),
          hosts_(across.size()),
          terms_(
              Scratch(args.scratch)
                  .cut_array<std::span<const std::byte>>(static_cast<std::size_t>(local.size()))),
          args_{.blocks = args.blocks,
                .scratch = args.scratch.subspan(staged::stage_scratch_bytes(local.size())),
                .reduce = args.reduce,
                .segment_bytes = segment_bytes(local, across, args.segment_bytes)},
          chunks_(args_.blocks.largest_bytes(), args_.segment_bytes, across.window_bytes()),
          lag_(std::max<std::size_t>(chunks_.slots(), 1) - 1),
          ring_(across, args_, local.rank() * hosts_) {}

    /// Step s works on chunks of all ages. Chunk s is staged out; chunk s-1 is added up within the
    /// host and starts around the ring; older chunks take some of their hops; the result of the
    /// oldest in the ring is published; and the chunk before that is copied in. Sends come first,
    /// waits last.
    void run() {
        if (chunks_.count() == 0) return;
        const auto published = 1 + lag_, copied_in = 2 + lag_;
        const auto last_step = chunks_.count() - 1 + copied_in;
        for (std::size_t step = 0; step <= last_step; ++step) {
            if (step > 0) local_.await(local_.round() - 1);
            std::size_t bytes = 0;
            with_chunk(step, 1, [&](std::size_t chunk) {
                reduce(chunk);
                ring_.start(slot_of(chunk), chunk);
            });
            with_chunk(step, copied_in, [&](std::size_t chunk) { copy_in(chunk); });
            with_chunk(step, 0, [&](std::size_t chunk) { bytes += stage_out(chunk); });
            advance(step);
            with_chunk(step, published, [&](std::size_t chunk) { bytes += publish_result(chunk); });
            if (step < last_step) local_.publish(bytes);
        }
    }

private:
    /// Calls act with the chunk that entered the pipeline `age` steps before `step`, if there is
    /// one.
    template <class Act>
    void with_chunk(std::size_t step, std::size_t age, const Act& act) const {
        if (step >= age && step - age < chunks_.count()) act(step - age);
    }

    std::size_t slot_of(std::size_t chunk) const noexcept { return chunk % chunks_.slots(); }

    /// How many hops a chunk of this age has done by the end of its step.
    int hops_done(std::size_t age) const noexcept {
        return static_cast<int>(age * static_cast<std::size_t>(ring_.hops()) / (lag_ + 1));
    }

    /// Chunks take turns, hop by hop: while this rank waits for one, messages of the others travel.
    void advance(std::size_t step) {
        for (int turn = 0; turn <= ring_.hops() / static_cast<int>(lag_ + 1); ++turn)
            for (std::size_t age = lag_ + 1; age > 0; --age)
                with_chunk(step, age, [&](std::size_t chunk) {
                    const int hop = hops_done(age - 1) + turn;
                    if (hop < hops_done(age)) ring_.advance(slot_of(chunk), hop);
                });
    }

    /// Calls visit(segment, at) for each segment of a chunk that a local rank owns. `at` is where
    /// the segment begins in a room for all of them.
    template <class Visit>
    void for_each_owned(int owner, std::size_t chunk, const Visit& visit) const {
        for (int host = 0; host < hosts_; ++host) {
            const int block = owner * hosts_ + host;
            visit(chunks_.segment(block, args_.blocks.bytes(block), chunk),
                  static_cast<std::size_t>(host) * chunks_.segment_bytes());
        }
    }
    template <class Visit>
    void for_each_other(const Visit& visit) const {
        for (int peer = 0; peer < local_.size(); ++peer)
            if (peer != local_.rank()) visit(peer);
    }
    /// The part of a rank's room for the segments of an owner; the rank's own part is for results.
    std::span<std::byte> part(int peer, std::uint64_t round, int owner) {
        return staged::section(local_.room(peer, round), owner,
                               static_cast<std::size_t>(hosts_) * chunks_.segment_bytes());
    }

    /// Copies an owner's segments of a chunk from this rank's tensors to a room. Returns the number
    /// of bytes.
    std::size_t copy_out(int owner, std::size_t chunk, std::span<std::byte> room) {
        std::size_t bytes = 0;
        for_each_owned(owner, chunk, [&](const Segment& segment, std::size_t first) {
            args_.blocks.for_each_run(segment, [&](std::span<const std::byte> run, std::size_t at) {
                bytes += local_.put(room.subspan(first + at), run);
            });
        });
        return bytes;
    }

    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        for_each_other([&](int peer) {
            bytes += copy_out(peer, chunk, part(local_.rank(), local_.round(), peer));
        });
        return bytes;
    }

    void reduce(std::size_t chunk) {
        for_each_owned(local_.rank(), chunk, [&](const Segment& segment, std::size_t first) {
            args_.blocks.for_each_run(segment, [&](std::span<std::byte> run, std::size_t at) {
                terms_[static_cast<std::size_t>(local_.rank())] = run;
                for_each_other([&](int peer) {
                    terms_[static_cast<std::size_t>(peer)] =
                        part(peer, local_.round() - 1, local_.rank())
                            .subspan(first + at, run.size());
                });
                within_.combine_tree(run, terms_);
            });
        });
    }

    std::size_t publish_result(std::size_t chunk) {
        return copy_out(local_.rank(), chunk, part(local_.rank(), local_.round(), local_.rank()));
    }

    void copy_in(std::size_t chunk) {
        for_each_other([&](int peer) {
            const auto published = part(peer, local_.round() - 1, peer);
            for_each_owned(peer, chunk, [&](const Segment& segment, std::size_t first) {
                args_.blocks.for_each_run(segment, [&](std::span<std::byte> run, std::size_t at) {
                    std::memcpy(run.data(), published.data() + first + at, run.size());
                });
            });
        });
    }

    P& local_;
    const Reduce& within_;
    int hosts_;
    std::span<std::span<const std::byte>> terms_;  ///< by local rank
    AllreduceArgs args_;                           ///< for the ring
    Chunks chunks_;
    /// Steps from the first hop of a chunk to its last; 0 if there is only one chunk.
    std::size_t lag_;
    ring::PipelinedRing<W> ring_;
};

/// `local`: the ranks of this host. `across`: the ranks, one on each host and at least two, that
/// have this rank's local rank. args.blocks: one per rank of all hosts. `within`: the arithmetic of
/// args.reduce without the finish, for sums within a host.
template <PeerMemory P, Wire W>
void allreduce(P& local, W& across, const AllreduceArgs& args, const Reduce& within) {
    Allreduce<P, W>(local, across, args, within).run();
}

}  // namespace guozhuang::hierarchical

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::hierarchical> = [](AllreduceSite auto& site) {
    auto& across = site.across();
    const auto& within = site.within();
    site.stage_on_host(site.cut(site.wire().size()),
                       [&](PeerMemory auto& local, AllreduceArgs args) {
                           args.scratch = site.scratch(hierarchical::allreduce_scratch_bytes(
                               local, across, args.blocks, args.segment_bytes));
                           hierarchical::allreduce(local, across, args, within);
                       });
};

}  // namespace guozhuang
