// All-gather and broadcast by levels, for ranks on one host or several. Each block goes once to
// every other host, from host to host; there one rank receives it, passes it on, and shows it to
// the others of the host in memory that they have mapped. The ranks of a host take turns in
// carrying blocks, so all of them drive the link. In a broadcast the ranks of the root's host copy
// in its data and then carry a block each.
//
// R. L. Graham, G. Shipman: MPI support for multi-core architectures: optimized shared memory
// collectives, EuroPVM/MPI 2008. The two levels are those of hierarchical_allreduce.hpp, the way
// from host to host is ring/ring_all_gather.hpp.
// Figure: all-gather of ranks 0 and 1 on one host, 2 and 3 on the other. In steps 0 and 2 a cell
// shows what a rank writes to its stage.
//
//           rank 0        rank 1        rank 2        rank 3
//   step 0  b0            b1            b2            b3
//   step 1  b0 -> 2       b1 -> 3       b2 -> 0       b3 -> 1
//   step 2  b2            b3            b0            b1
//   end     b0 b1 b2 b3   b0 b1 b2 b3   b0 b1 b2 b3   b0 b1 b2 b3
//
// Cost, on H hosts of L ranks: segments + chunks in flight rounds within the host, n beta copied
// in and n/L beta out; across (H-1) alpha per chunk, of which most overlap, and (H-1)/H n/L beta;
// in a broadcast n/L beta.
// Needs: scratch_bytes(); segments are shortened to what a room holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "collectives/concepts/wire.hpp"
#include "collectives/hierarchical/levels.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/tree/tree_broadcast.hpp"

namespace guozhuang::hierarchical {

/// The work of one all-gather or broadcast on one rank.
template <PeerMemory P, Wire W>
class AllGather {
public:
    /// `local`: the ranks of this host. `wire`: all ranks, numbered as in `ranks`. args.root: -1 in
    /// an all-gather. args.blocks: one for each rank; with a root one for each rank of its host, or
    /// on one host only one.
    AllGather(P& local, W& wire, const RanksByHost& ranks, const tree::BroadcastArgs& args)
        : local_(local),
          wire_(wire),
          ranks_(ranks),
          args_(args),
          first_(first_rank(ranks, args)),
          carried_(ranks.carried(first_, args.blocks.count())),
          chunks_(chunks_of(local, wire, ranks, args)),
          scratch_(args.scratch),
          messages_(chunks_, messages(ranks, args), scratch_) {}

    static std::size_t scratch_bytes(P& local, const W& wire, const RanksByHost& ranks,
                                     const tree::BroadcastArgs& args) {
        return Messages<W>::scratch_bytes(chunks_of(local, wire, ranks, args),
                                          messages(ranks, args));
    }

    void run() { by_levels(local_, chunks_, ranks_.hosts() - 1, *this); }

    // The calls of by_levels(). First the blocks of this host's ranks, or those of the root.
    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        each_block([&](int rank) {
            if (ranks_.hosts_from(rank) == 0 && source(rank) == ranks_.rank())
                bytes += copy_out(rank, chunk);
        });
        return bytes;
    }
    void start(std::size_t chunk) {
        each_block([&](int rank) {
            if (ranks_.hosts_from(rank) == 0) copy_in(rank, source(rank), chunk);
        });
        each_message(0, chunk, [&](auto& own, int rank) {
            own.bytes = args_.blocks.gather(segment(rank, chunk), own.room);
            send(own, rank);
        });
        each_message(1, chunk, [&](auto& message, int rank) { receive(message, rank, chunk); });
    }
    /// Passes on what has gone as many hosts far.
    void hop(std::size_t chunk, int number) {
        each_message(number + 1, chunk, [&](auto& message, int rank) {
            wire_.wait(message.incoming);
            send(message, rank);
            args_.blocks.scatter(segment(rank, chunk), message.bytes);
        });
        each_message(number + 2, chunk,
                     [&](auto& message, int rank) { receive(message, rank, chunk); });
        if (number + 2 == ranks_.hosts())
            for (auto& message : messages_.of(chunk)) wire_.wait(message.outgoing);
    }
    std::size_t publish_result(std::size_t chunk) {
        std::size_t bytes = 0;
        if (local_.size() == 1) return bytes;
        for (const int rank : carried_)
            if (ranks_.hosts_from(rank) > 0) bytes += copy_out(rank, chunk);
        return bytes;
    }
    void copy_in(std::size_t chunk) {
        each_block([&](int rank) {
            if (ranks_.hosts_from(rank) > 0)
                copy_in(rank, ranks_.carrier(rank, ranks_.host()), chunk);
        });
    }

private:
    static bool is_broadcast(const tree::BroadcastArgs& args) { return args.root >= 0; }
    /// The rank that block 0 belongs to.
    static int first_rank(const RanksByHost& ranks, const tree::BroadcastArgs& args) {
        return is_broadcast(args) ? ranks.first(ranks.host_of(args.root)) : 0;
    }
    static Chunks chunks_of(P& local, const W& wire, const RanksByHost& ranks,
                            const tree::BroadcastArgs& args) {
        return {args.blocks.largest_bytes(),
                std::min(args.segment_bytes,
                         longest_segment_bytes(local, sections(ranks, args.blocks))),
                window_bytes(wire, ranks)};
    }
    static std::size_t messages(const RanksByHost& ranks, const tree::BroadcastArgs& args) {
        if (ranks.hosts() == 1) return 0;
        return ranks.carried(first_rank(ranks, args), args.blocks.count()).size();
    }
    /// How many segments of a chunk have their place in a room. On one host no rank writes more
    /// than one.
    static int sections(const RanksByHost& ranks, const Blocks& blocks) {
        return ranks.hosts() == 1 ? 1 : blocks.count();
    }

    /// The rank of its host that has a block at the beginning.
    int source(int rank) const { return is_broadcast(args_) ? args_.root : rank; }
    template <class Visit>
    void each_block(const Visit& visit) const {
        for (int block = 0; block < args_.blocks.count(); ++block) visit(first_ + block);
    }
    /// Calls visit(message, rank) for the blocks that this rank carries this many hosts from where
    /// they began.
    template <class Visit>
    void each_message(int hosts, std::size_t chunk, const Visit& visit) {
        const auto messages = messages_.of(chunk);
        for (std::size_t i = 0; i < messages.size(); ++i)
            if (ranks_.hosts_from(carried_[i]) == hosts) visit(messages[i], carried_[i]);
    }
    Segment segment(int rank, std::size_t chunk) const {
        return chunks_.segment(rank - first_, args_.blocks.bytes(rank - first_), chunk);
    }
    void receive(auto& message, int rank, std::size_t chunk) {
        message.bytes = args_.blocks.landing(segment(rank, chunk), message.room);
        if (!message.bytes.empty())
            message.incoming =
                wire_.receive(message.bytes, ranks_.carrier(rank, ranks_.host_after(-1)));
    }
    void send(auto& message, int rank) {
        const int next = ranks_.host_after(1);
        if (!message.bytes.empty() && next != ranks_.host_of(rank))
            message.outgoing = wire_.send(message.bytes, ranks_.carrier(rank, next));
    }
    /// Where a rank of this host shows a block.
    std::span<std::byte> part(int by, std::uint64_t round, int rank) {
        return staged::section(local_.room(ranks_.local_rank(by), round),
                               (rank - first_) % sections(ranks_, args_.blocks),
                               chunks_.segment_bytes());
    }
    std::size_t copy_out(int rank, std::size_t chunk) {
        const auto room = part(ranks_.rank(), local_.round(), rank);
        args_.blocks.for_each_run(segment(rank, chunk),
                                  [&](std::span<const std::byte> run, std::size_t at) {
                                      local_.put(room.subspan(at), run);
                                  });
        return segment(rank, chunk).bytes;
    }
    void copy_in(int rank, int from, std::size_t chunk) {
        if (from != ranks_.rank())
            args_.blocks.scatter(segment(rank, chunk), part(from, local_.round() - 1, rank));
    }

    P& local_;
    W& wire_;
    const RanksByHost& ranks_;
    const tree::BroadcastArgs& args_;
    int first_;
    std::vector<int> carried_;
    Chunks chunks_;
    Scratch scratch_;
    Messages<W> messages_;  ///< as in carried_
};

/// `site`: lends the wire and the scratch. For the rest see the class.
template <class Site, PeerMemory P>
void all_gather(Site& site, P& local, const RanksByHost& ranks, tree::BroadcastArgs args) {
    auto& wire = site.ring();
    using Work = AllGather<P, std::remove_reference_t<decltype(wire)>>;
    args.scratch = site.scratch(Work::scratch_bytes(local, wire, ranks, args));
    Work(local, wire, ranks, args).run();
}

}  // namespace guozhuang::hierarchical
