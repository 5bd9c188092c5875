// Hierarchical reduce-scatter, for ranks on several hosts. Within each host the terms of every
// block are added up through memory that its ranks have mapped; then each host sends its sum of a
// block to the block's owner, who adds up those. On other hosts than its owner's, the ranks take
// turns in adding up and sending blocks, so all of them drive the link.
//
// The two levels are those of the hierarchical allreduce (hierarchical_allreduce.hpp), the one
// within a host is staged/staged_reduce_scatter.hpp, the one across hosts
// direct/direct_reduce_scatter.hpp.
// Figure: ranks 0 and 1 on one host, 2 and 3 on the other. In step 0 a cell shows what a rank
// writes to its stage.
//
//           rank 0         rank 1         rank 2         rank 3
//   step 0  b1=0 b3=0      b0=1 b2=1      b1=2 b3=2      b0=3 b2=3
//   step 1  b2=0+1 -> 2    b3=0+1 -> 3    b0=2+3 -> 0    b1=2+3 -> 1
//   end     b0=0+1+(2+3)   b1=0+1+(2+3)   b2=0+1+(2+3)   b3=0+1+(2+3)
//
// Cost, on H hosts of L ranks: segments + chunks in flight rounds within the host, (L-1)/L n beta
// copied in and n gamma added up there; across (H-1) alpha per chunk, (H-1)/H n/L (beta + gamma).
// Order: the balanced binary tree over the ranks of each host, rounded to elements once; then the
// same over those sums, by host.
// Needs: reduce_scatter_scratch_bytes; segments are shortened to what a room holds. The input is
// not changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/concepts/wire.hpp"
#include "collectives/direct/direct_reduce_scatter.hpp"
#include "collectives/hierarchical/levels.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang::hierarchical {

/// The work of one reduce-scatter on one rank.
template <PeerMemory P, Wire W>
class ReduceScatter {
public:
    ReduceScatter(P& local, W& wire, const RanksByHost& ranks,
                  const direct::ReduceScatterArgs& args, const Reduce& within)
        : local_(local),
          wire_(wire),
          ranks_(ranks),
          args_(args),
          within_(within),
          carried_(ranks.carried(wire.rank(), ranks.ranks())),
          chunks_(chunks_for(local, wire, ranks, direct::largest_bytes(args.input),
                             args.segment_bytes)),
          slots_(chunks_.slots()) {
        Scratch scratch(args.scratch);
        terms_ = scratch.cut_array<std::span<const std::byte>>(args.input.size());
        for (auto& slot : slots_) {
            slot.arriving.resize(static_cast<std::size_t>(ranks.hosts()));
            slot.leaving.resize(carried_.size());
            for (auto* const messages : {&slot.arriving, &slot.leaving})
                for (auto& each : *messages) each.room = scratch.cut(chunks_.segment_bytes());
        }
    }

    void run() { by_levels(local_, chunks_, /*hops=*/1, *this); }

    // The calls of by_levels().
    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        for (int block = 0; block < wire_.size(); ++block)
            if (ranks_.carrier(block, ranks_.host()) != wire_.rank())
                bytes += local_.put(part(local_.rank(), local_.round(), block),
                                    segment_of(block, chunk));
        return bytes;
    }
    /// Adds up this host's terms of the blocks of other hosts and sends them; then those of its own
    /// block.
    void start(std::size_t chunk) {
        auto& [arriving, leaving] = slots_[chunk % slots_.size()];
        const auto sum = own_sum(chunk);
        for (int host = 0; host < ranks_.hosts(); ++host)
            if (host != ranks_.host() && !sum.empty()) {
                auto& message = arriving[static_cast<std::size_t>(host)];
                message.ticket = wire_.receive(message.room.first(sum.size()),
                                               ranks_.carrier(wire_.rank(), host));
            }
        for (std::size_t i = 0; i < carried_.size(); ++i) {
            const auto bytes = leaving[i].room.first(segment_of(carried_[i], chunk).size());
            if (bytes.empty() || carried_[i] == wire_.rank()) continue;
            add_up(bytes, carried_[i], chunk);
            leaving[i].ticket = wire_.send(bytes, carried_[i]);
        }
        add_up(sum, wire_.rank(), chunk);
    }
    void hop(std::size_t chunk, int) {
        auto& [arriving, leaving] = slots_[chunk % slots_.size()];
        const auto sum = own_sum(chunk);
        const auto terms = terms_.first(arriving.size());
        for (std::size_t host = 0; host < terms.size(); ++host) {
            wire_.wait(arriving[host].ticket);
            terms[host] = arriving[host].room.first(sum.size());
        }
        terms[static_cast<std::size_t>(ranks_.host())] = sum;
        args_.reduce.combine_tree(sum, terms);
        for (auto& message : leaving) wire_.wait(message.ticket);
    }

private:
    struct Message {
        std::span<std::byte> room;
        typename W::Ticket ticket{};
    };
    struct Slot {
        std::vector<Message> arriving;  ///< by host
        std::vector<Message> leaving;   ///< one for each of carried_
    };

    std::span<const std::byte> segment_of(int block, std::size_t chunk) const {
        const auto whole = args_.input[static_cast<std::size_t>(block)];
        return staged::slice(whole, chunks_.segment(block, whole.size(), chunk));
    }
    std::span<std::byte> own_sum(std::size_t chunk) const {
        const auto whole = args_.output;
        return staged::slice(whole, chunks_.segment(wire_.rank(), whole.size(), chunk));
    }
    std::span<std::byte> part(int local, std::uint64_t round, int block) {
        return staged::section(local_.room(local, round), block, chunks_.segment_bytes());
    }
    void add_up(std::span<std::byte> into, int block, std::size_t chunk) {
        const auto terms = terms_.first(static_cast<std::size_t>(local_.size()));
        for (int peer = 0; peer < local_.size(); ++peer)
            terms[static_cast<std::size_t>(peer)] =
                peer == local_.rank() ? segment_of(block, chunk)
                                      : part(peer, local_.round() - 1, block).first(into.size());
        within_.combine_tree(into, terms);
    }

    P& local_;
    W& wire_;
    const RanksByHost& ranks_;
    const direct::ReduceScatterArgs& args_;
    const Reduce& within_;
    std::vector<int> carried_;
    Chunks chunks_;
    std::span<std::span<const std::byte>> terms_;  ///< by local rank, or by host
    std::vector<Slot> slots_;
};

template <PeerMemory P, Wire W>
std::size_t reduce_scatter_scratch_bytes(P& local, const W& wire, const RanksByHost& ranks,
                                         std::span<const std::span<const std::byte>> blocks,
                                         std::size_t segment_bytes) {
    const auto chunks =
        chunks_for(local, wire, ranks, direct::largest_bytes(blocks), segment_bytes);
    const auto messages =
        static_cast<std::size_t>(ranks.hosts()) + ranks.carried(wire.rank(), ranks.ranks()).size();
    return padded_array<std::span<const std::byte>>(blocks.size()) +
           chunks.slots() * messages * chunks.segment_bytes();
}

/// `local`: the ranks of this host. `wire`: all ranks, numbered as in `ranks`, and so are the
/// blocks. `within`: the arithmetic of args.reduce without the finish.
template <PeerMemory P, Wire W>
void reduce_scatter(P& local, W& wire, const RanksByHost& ranks,
                    const direct::ReduceScatterArgs& args, const Reduce& within) {
    ReduceScatter<P, W>(local, wire, ranks, args, within).run();
}

}  // namespace guozhuang::hierarchical
