// Reduce-scatter by levels, for ranks on one host or several. Within each host the terms of every
// block are added up through memory that its ranks have mapped; then each host sends its sum of a
// block to the block's owner, who adds up those. On other hosts than its owner's, the ranks take
// turns in adding up and sending blocks, so all of them drive the link.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005, with loads and stores instead of messages
// within a host. The two levels are those of hierarchical_allreduce.hpp.
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
// same over those sums, by host. On one host the bits are those of the staged allreduce.
// Needs: scratch_bytes(); segments are shortened to what a room holds. The input is
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
    /// `local`: the ranks of this host. `wire`: all ranks, numbered as in `ranks`, and so are the
    /// blocks, of which only the lengths matter here.
    ReduceScatter(P& local, W& wire, const RanksByHost& ranks,
                  std::span<const std::span<const std::byte>> blocks, std::size_t segment_bytes)
        : local_(local),
          wire_(wire),
          ranks_(ranks),
          carried_(ranks.carried(ranks.rank(), ranks.ranks())),
          chunks_(direct::largest_bytes(blocks),
                  std::min(segment_bytes, longest_segment_bytes(local, ranks.ranks())),
                  2 * wire.window_bytes() / this->ranks()),  // half of them leave the smallest host
          messages_(chunks_, ranks.hosts() > 1 ? hosts() + carried_.size() - 1 : 0) {}

    std::size_t scratch_bytes() const {
        return padded_array<std::span<const std::byte>>(ranks()) + messages_.scratch_bytes();
    }
    /// `within`: the arithmetic of args.reduce without the finish.
    void run(const direct::ReduceScatterArgs& args, const Reduce& within) {
        args_ = &args;
        within_ = ranks_.hosts() > 1 ? &within : &args.reduce;
        Scratch scratch(args.scratch);
        terms_ = scratch.cut_array<std::span<const std::byte>>(ranks());
        messages_.cut_from(scratch);
        by_levels(local_, chunks_, /*hops=*/ranks_.hosts() > 1 ? 1 : 0, *this);
    }

    // The calls of by_levels().
    std::size_t stage_out(std::size_t chunk) {
        std::size_t bytes = 0;
        for (int block = 0; block < ranks_.ranks(); ++block)
            if (ranks_.carrier(block, ranks_.host()) != ranks_.rank())
                bytes += local_.put(part(local_.rank(), local_.round(), block),
                                    segment_of(block, chunk));
        return bytes;
    }
    /// Adds up this host's terms of the blocks of other hosts and sends them; then those of its own
    /// block.
    void start(std::size_t chunk) {
        const auto sum = own_sum(chunk);
        const auto messages = messages_.of(chunk);
        for (int host = 0; host < ranks_.hosts(); ++host)
            if (host != ranks_.host() && !sum.empty()) {
                auto& message = messages[static_cast<std::size_t>(host)];
                message.incoming = wire_.receive(message.room.first(sum.size()),
                                                 ranks_.carrier(ranks_.rank(), host));
            }
        auto message = messages.rbegin();
        for (const int block : carried_) {
            const auto bytes = segment_of(block, chunk).size();
            if (block == ranks_.rank() || bytes == 0) continue;
            message->bytes = message->room.first(bytes);
            add_up(message->bytes, block, chunk);
            message->outgoing = wire_.send(message->bytes, block);
            ++message;
        }
        add_up(sum, ranks_.rank(), chunk);
    }
    void hop(std::size_t chunk, int) {
        const auto sum = own_sum(chunk);
        const auto messages = messages_.of(chunk);
        const auto terms = terms_.first(hosts());
        for (std::size_t host = 0; host < terms.size(); ++host) {
            wire_.wait(messages[host].incoming);
            terms[host] = messages[host].room.first(sum.size());
        }
        terms[static_cast<std::size_t>(ranks_.host())] = sum;
        args_->reduce.combine_tree(sum, terms);
        for (auto& message : messages) wire_.wait(message.outgoing);
    }

private:
    std::size_t ranks() const { return static_cast<std::size_t>(ranks_.ranks()); }
    std::size_t hosts() const { return static_cast<std::size_t>(ranks_.hosts()); }
    std::span<const std::byte> segment_of(int block, std::size_t chunk) const {
        const auto whole = args_->input[static_cast<std::size_t>(block)];
        return staged::slice(whole, chunks_.segment(block, whole.size(), chunk));
    }
    std::span<std::byte> own_sum(std::size_t chunk) const {
        const auto whole = args_->output;
        return staged::slice(whole, chunks_.segment(ranks_.rank(), whole.size(), chunk));
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
        within_->combine_tree(into, terms);
    }

    P& local_;
    W& wire_;
    const RanksByHost& ranks_;
    const direct::ReduceScatterArgs* args_ = nullptr;
    const Reduce* within_ = nullptr;
    std::vector<int> carried_;
    Chunks chunks_;
    std::span<std::span<const std::byte>> terms_;  ///< by local rank, or by host
    Messages<W> messages_;  ///< those that arrive, by host, and as many more as leave
};

}  // namespace guozhuang::hierarchical
