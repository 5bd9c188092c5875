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
          first_(args.root < 0 ? 0 : ranks.first(ranks.host_of(args.root))),
          // On one host no rank has to show more than one block.
          sections_(ranks.hosts() > 1 ? args.blocks.count() : 1),
          carried_(ranks.carried(first_, args.blocks.count())),
          chunks_(args.blocks.largest_bytes(),
                  std::min(args.segment_bytes, longest_segment_bytes(local, sections_)),
                  window_bytes(wire, ranks, args) / static_cast<std::size_t>(args.blocks.count())),
          messages_(chunks_, ranks.hosts() > 1 ? carried_.size() : 0, args.blocks.are_runs()) {}

    std::size_t scratch_bytes() const { return messages_.scratch_bytes(); }
    void run(Scratch scratch) {
        messages_.cut_from(scratch);
        by_levels(local_, chunks_, ranks_.hosts() - 1, *this);
    }

    // The calls of by_levels(). First the blocks of this host's ranks, or those of the root.
    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        if (local_.size() == 1) return bytes;
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
    /// The bytes of all chunks in flight. A link carries 1/hosts of a chunk at a time, but in a
    /// broadcast all of one.
    static std::size_t window_bytes(const W& wire, const RanksByHost& ranks,
                                    const tree::BroadcastArgs& args) {
        const int links = args.root < 0 ? ranks.hosts() : std::min(ranks.hosts(), 2);
        return wire.window_bytes() * static_cast<std::size_t>(links);
    }
    /// The rank of its host that has a block at the beginning.
    int source(int rank) const { return args_.root < 0 ? rank : args_.root; }
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
                               (rank - first_) % sections_, chunks_.segment_bytes());
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
    int first_, sections_;  ///< the rank of block 0; the segments of a chunk in a room
    std::vector<int> carried_;
    Chunks chunks_;
    Messages<W> messages_;  ///< as in carried_
};

}  // namespace guozhuang::hierarchical
