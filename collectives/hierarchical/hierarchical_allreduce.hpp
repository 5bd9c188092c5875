// Hierarchical allreduce, for ranks on several hosts. First reduce-scatter within each host,
// through memory that its ranks have mapped; then for each share a ring across the hosts, all rings
// side by side; then all-gather within each host. All of it goes segment by segment: while messages
// of some chunks travel, others are added up and copied in.
//
// The scheme is the 2D-torus allreduce (H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y.
// Kageyama: Massively distributed SGD: ImageNet/ResNet-50 training in a flash, arXiv:1811.05233,
// 2018; as BlueConnect for any number of levels: M. Cho, U. Finkler, D. Kung, H. Hunter, MLSys
// 2019). Within a host it is the staged allreduce (staged/staged_allreduce.hpp), across hosts the
// pipelined ring (ring/pipelined_allreduce.hpp).
//
// With L ranks on each of H hosts there are L columns and L H blocks. Column c has local rank c of
// each host, and blocks c H to c H + H-1, one for each rank of its ring. If hosts have different
// numbers of ranks, L is the largest of them, down to a multiple of the smallest; local ranks from
// L on are in no column, and on a host of M < L ranks local rank l is in columns l, l + M, ...
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
// fetched, n gamma added up within; for each column (H-1)/H n/L (2 beta + gamma) across, so the
// hosts' links carry what one ring's would, in L messages side by side.
// Order: the balanced binary tree over the ranks of each host, rounded to elements once; those sums
// as in the ring, block h of a column being host h+1, then h+2, ... and h last, on elements: f16
// and bf16 are rounded once per host.
// Needs: allreduce_scratch_bytes, and rooms for L times H segments; segments
// are shortened to what fits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/hierarchical/levels.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "collectives/staged/sections.hpp"

namespace guozhuang::hierarchical {

/// With shorter segments the messages across hosts would be too many and too short.
inline constexpr std::size_t least_segment_bytes = std::size_t{8} << 10;

/// The longest segment that fits the room, for this many columns and hosts; 0 if the room is too
/// small.
constexpr std::size_t segment_limit_bytes(std::size_t room_bytes, int columns, int hosts) noexcept {
    return staged::section_limit_bytes(staged::section_limit_bytes(room_bytes, columns), hosts);
}

template <PeerMemory P, Wire W>
std::size_t segment_bytes(P& local, W& across, const Blocks& blocks, std::size_t wanted_bytes) {
    const auto room = local.room(local.rank(), local.round()).size();
    const int hosts = across.size();
    return std::min(wanted_bytes, segment_limit_bytes(room, blocks.count() / hosts, hosts));
}

template <PeerMemory P, Wire W>
std::size_t allreduce_scratch_bytes(P& local, std::span<W> across, const Blocks& blocks,
                                    std::size_t wanted_bytes) {
    const auto segment = segment_bytes(local, across.front(), blocks, wanted_bytes);
    const bool in_a_ring = local.rank() < blocks.count() / across.front().size();
    const auto rings = in_a_ring ? across.size() : 0;
    return staged::stage_scratch_bytes(local.size()) +
           rings * ring::pipelined_scratch_bytes(across.front(), blocks, segment);
}

/// The work of one allreduce on one rank.
template <PeerMemory P, Wire W>
class Allreduce {
public:
    /// `local`: the ranks of this host. `across`: for each column of this rank, in ascending order,
    /// its ranks, one of each of at least two hosts; for a rank of no column, one that it does not
    /// use. args.blocks: one per host for each column. `within`: the arithmetic of args.reduce
    /// without the finish, for sums within a host.
    Allreduce(P& local, std::span<W> across, const AllreduceArgs& args, const Reduce& within)
        : local_(local),
          within_(within),
          hosts_(across.front().size()),
          columns_(args.blocks.count() / hosts_),
          args_{.blocks = args.blocks,
                .scratch = args.scratch,
                .reduce = args.reduce,
                .segment_bytes =
                    segment_bytes(local, across.front(), args.blocks, args.segment_bytes)},
          chunks_(args_.blocks.largest_bytes(), args_.segment_bytes,
                  across.front().window_bytes()) {
        Scratch scratch(args.scratch);
        terms_ =
            scratch.cut_array<std::span<const std::byte>>(static_cast<std::size_t>(local.size()));
        rings_.reserve(across.size());
        for_each_column(/*own=*/true, [&](int column) {
            rings_.emplace_back(across[rings_.size()], args_, scratch, column * hosts_);
        });
    }

    void run() { by_levels(local_, chunks_, 2 * (hosts_ - 1), *this); }

    // The calls of by_levels().
    std::size_t stage_out(std::size_t chunk) { return copy_out(/*own=*/false, chunk); }
    /// Adds up a chunk and starts it around the rings; column by column, so that the first of them
    /// starts early.
    void start(std::size_t chunk) {
        for_each_column(/*own=*/true, [&, ring = rings_.begin()](int column) mutable {
            reduce(column, chunk);
            (ring++)->start(chunk % chunks_.slots(), chunk);
        });
    }
    void hop(std::size_t chunk, int number) {
        for (auto& ring : rings_) ring.advance(chunk % chunks_.slots(), number);
    }
    std::size_t publish_result(std::size_t chunk) {
        return local_.size() > 1 ? copy_out(/*own=*/true, chunk) : 0;
    }
    void copy_in(std::size_t chunk) {
        for_each_column(/*own=*/false, [&](int column) {
            const auto published = part(owner_of(column), local_.round() - 1, column);
            for_each_segment(column, chunk, [&](const Segment& segment, std::size_t first) {
                args_.blocks.scatter(segment, published.subspan(first));
            });
        });
    }

private:
    int owner_of(int column) const { return column % local_.size(); }
    /// Calls visit(column) for each column that this rank is in, or is not in.
    template <class Visit>
    void for_each_column(bool own, Visit&& visit) const {
        for (int column = 0; column < columns_; ++column)
            if ((owner_of(column) == local_.rank()) == own) visit(column);
    }
    /// Calls visit(segment, at) for each segment of a chunk in a column. `at` is where the segment
    /// begins in a room for all of them.
    template <class Visit>
    void for_each_segment(int column, std::size_t chunk, const Visit& visit) const {
        for (int host = 0; host < hosts_; ++host) {
            const int block = column * hosts_ + host;
            visit(chunks_.segment(block, args_.blocks.bytes(block), chunk),
                  static_cast<std::size_t>(host) * chunks_.segment_bytes());
        }
    }
    template <class Visit>
    void for_each_other(const Visit& visit) const {
        for (int peer = 0; peer < local_.size(); ++peer)
            if (peer != local_.rank()) visit(peer);
    }
    /// The part of a rank's room for the segments of a column. In the rank's own columns it is for
    /// results.
    std::span<std::byte> part(int peer, std::uint64_t round, int column) {
        return staged::section(local_.room(peer, round), column,
                               static_cast<std::size_t>(hosts_) * chunks_.segment_bytes());
    }

    /// Copies the segments of a chunk in its own columns, or in the others, from this rank's
    /// tensors to its room. Returns the number of bytes.
    std::size_t copy_out(bool own, std::size_t chunk) {
        std::size_t bytes = 0;
        for_each_column(own, [&](int column) {
            const auto room = part(local_.rank(), local_.round(), column);
            for_each_segment(column, chunk, [&](const Segment& segment, std::size_t first) {
                args_.blocks.for_each_run(segment,
                                          [&](std::span<const std::byte> run, std::size_t at) {
                                              bytes += local_.put(room.subspan(first + at), run);
                                          });
            });
        });
        return bytes;
    }
    void reduce(int column, std::size_t chunk) {
        for_each_segment(column, chunk, [&](const Segment& segment, std::size_t first) {
            args_.blocks.for_each_run(segment, [&](std::span<std::byte> run, std::size_t at) {
                terms_[static_cast<std::size_t>(local_.rank())] = run;
                for_each_other([&](int peer) {
                    terms_[static_cast<std::size_t>(peer)] =
                        part(peer, local_.round() - 1, column).subspan(first + at, run.size());
                });
                within_.combine_tree(run, terms_);
            });
        });
    }

    P& local_;
    const Reduce& within_;
    int hosts_, columns_;
    std::span<std::span<const std::byte>> terms_;  ///< by local rank
    AllreduceArgs args_;                           ///< for the rings
    Chunks chunks_;
    std::vector<ring::PipelinedRing<W>> rings_;  ///< of this rank's columns, ascending
};

}  // namespace guozhuang::hierarchical

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::hierarchical> = [](AllreduceSite auto& site) {
    const auto across = site.across();
    const auto& within = site.within();
    site.stage_on_host(site.cut(site.columns() * across.front().size()),
                       [&](PeerMemory auto& local, AllreduceArgs args) {
                           args.scratch = site.scratch(hierarchical::allreduce_scratch_bytes(
                               local, across, args.blocks, args.segment_bytes));
                           hierarchical::Allreduce(local, across, args, within).run();
                       });
};

}  // namespace guozhuang
