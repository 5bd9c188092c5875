// Recursive doubling allreduce: groups of 1, 2, 4, ... ranks, each of which knows its group's sum,
// pair up, swap sums and add them. It has the fewest steps, with the whole bundle in each: for
// bundles so small that a message costs more than its bytes.
//
// R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005. There the ranks beyond a power of two are
// folded into others first. Here the last group is shorter and each of its ranks serves several, so
// the sum is the same balanced tree for any number of ranks.
//
//           rank 0           rank 1           rank 2           rank 3           rank 4
//   step 0  0 -> 1           1 -> 0           2 -> 3           3 -> 2           4 -> 0
//   step 1  0+1 -> 2         0+1 -> 3         2+3 -> 0         2+3 -> 1         4 -> 1
//   step 2  0+1+(2+3) -> 4                                                      4 -> 2
//   step 3                                                                      4 -> 3
//   end     0+1+(2+3)+4      0+1+(2+3)+4      0+1+(2+3)+4      0+1+(2+3)+4      0+1+(2+3)+4
//
// Cost: ceil(log2 p) (alpha + n beta + n gamma) for a power of two; otherwise a rank of a short
// group sends to several partners, one after another.
// On several hosts, with a power of two of consecutive ranks on each, the first log2 L steps are
// replaced by two rounds through memory, and only one rank of each host goes through the others.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count. The tensors are widened once, partial sums travel (f16 and bf16 as f32, twice the bytes),
// and the result is rounded once.
// Needs: doubling_scratch_bytes, the bundle twice, as partials; or host_doubling_scratch_bytes, the
// bundle once for each rank of the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::recursive {

/// One rank's part when group A = [2dk, 2dk+d) and group B = [2dk+d, 2dk+2d), cut off at the last
/// rank, swap sums: it receives from `source` and sends to `first_served`, + stride, ... below
/// `end_served`. If B is empty there is no partner.
struct Exchange {
    bool has_partner = false;
    bool left = false;  ///< in group A, whose sum is the left operand
    int source = 0;
    int first_served = 0, stride = 1, end_served = 0;
};

constexpr Exchange exchange_of(int rank, int distance, int size) noexcept {
    const int begin_a = rank / (2 * distance) * (2 * distance);
    const int begin_b = begin_a + distance;
    const int count_b = std::min(distance, size - begin_b);
    if (count_b <= 0) return {};
    if (rank < begin_b) {
        const int index = rank - begin_a;
        const int partner = begin_b + index % count_b;
        return {.has_partner = true,
                .left = true,
                .source = partner,
                .first_served = partner,
                .end_served = partner + (index < count_b ? 1 : 0)};
    }
    const int partner = begin_a + (rank - begin_b);
    return {.has_partner = true,
            .source = partner,
            .first_served = partner,
            .stride = count_b,
            .end_served = begin_b};
}

/// Calls visit(run, at) for each run of the bundle, which begins `at` bytes from the first.
template <class Visit>
void for_each_run(const AllreduceArgs& args, const Visit& visit) {
    std::size_t at = 0;
    for (int block = 0; block < args.blocks.count(); ++block) {
        args.blocks.for_each_run(args.blocks.whole(block),
                                 [&](std::span<std::byte> run, std::size_t) {
                                     visit(run, at);
                                     at += run.size();
                                 });
    }
}

/// The bytes of as many partials.
inline std::size_t partial_bytes(const Reduce& reduce, std::size_t bytes) {
    return bytes / reduce.element_bytes() * reduce.partial_bytes();
}

template <Wire W>
std::size_t doubling_scratch_bytes(const Blocks& blocks, const Reduce& reduce, int ranks) {
    return 2 * padded(partial_bytes(reduce, blocks.total_bytes())) +
           padded_array<typename W::Ticket>(static_cast<std::size_t>(ranks));
}

/// Only the steps: combines the `mine` of all ranks into `mine`, by combine(into, left, right).
/// `theirs` is scratch for arriving data.
template <Wire W, class Combine>
void double_up(W& wire, std::span<std::byte> mine, std::span<std::byte> theirs,
               std::span<typename W::Ticket> tickets, const Combine& combine) {
    for (int distance = 1; distance < wire.size(); distance *= 2) {
        const auto now = exchange_of(wire.rank(), distance, wire.size());
        if (!now.has_partner) continue;
        auto incoming = wire.receive(theirs, now.source);
        std::size_t sent = 0;
        for (int peer = now.first_served; peer < now.end_served; peer += now.stride)
            tickets[sent++] = wire.send(mine, peer);
        wire.wait(incoming);
        for (auto& ticket : tickets.first(sent)) wire.wait(ticket);
        combine(mine, now.left ? mine : theirs, now.left ? theirs : mine);
    }
}

inline auto combine_by(const Reduce& reduce) {
    return
        [&reduce](std::span<std::byte> into, std::span<const std::byte> left,
                  std::span<const std::byte> right) { reduce.combine_partials(into, left, right); };
}

/// args.blocks: any number of blocks, the same on all ranks; one is cheapest.
template <Wire W>
void doubling_allreduce(W& wire, const AllreduceArgs& args) {
    if (args.blocks.total_bytes() == 0) return;
    const auto& reduce = args.reduce;
    Scratch scratch(args.scratch);
    const auto bytes = partial_bytes(reduce, args.blocks.total_bytes());
    const auto mine = scratch.cut(bytes), theirs = scratch.cut(bytes);
    const auto tickets =
        scratch.cut_array<typename W::Ticket>(static_cast<std::size_t>(wire.size()));
    const auto partials = [&](std::size_t at, std::size_t size) {
        return mine.subspan(partial_bytes(reduce, at), partial_bytes(reduce, size));
    };
    for_each_run(args, [&](std::span<std::byte> run, std::size_t at) {
        reduce.widen(partials(at, run.size()), run);
    });
    double_up(wire, mine, theirs, tickets, combine_by(reduce));
    for_each_run(args, [&](std::span<std::byte> run, std::size_t at) {
        reduce.narrow(run, partials(at, run.size()));
    });
}

template <PeerMemory P, Wire W>
std::size_t host_doubling_scratch_bytes(P& local, W& across, const Blocks& blocks,
                                        const Reduce& reduce) {
    const auto terms = static_cast<std::size_t>(std::max(local.size(), 2));
    return terms * padded(partial_bytes(reduce, blocks.total_bytes())) +
           padded_array<std::span<std::byte>>(terms) +
           padded_array<typename W::Ticket>(static_cast<std::size_t>(across.size()));
}

/// The same bits, for ranks on several hosts: a power of two on each, with consecutive numbers, so
/// that the first steps are within a host. There the ranks show their bundles in memory, and the
/// first of them adds them up and goes through the other steps for all. `local`: the ranks of this
/// host. `across`: the ranks, one of each host, with this local rank. A room of `local` holds the
/// bundle.
template <PeerMemory P, Wire W>
void host_doubling_allreduce(P& local, W& across, const AllreduceArgs& args) {
    const auto bytes = args.blocks.total_bytes();
    if (bytes == 0) return;
    const auto round = local.round();
    const auto shown = [&](int peer) { return local.room(peer, round).first(bytes); };
    const auto sum = [&] { return local.room(0, round + 1).first(bytes); };
    for_each_run(args, [&](std::span<const std::byte> run, std::size_t at) {
        local.put(shown(local.rank()).subspan(at), run);
    });
    local.publish(bytes);
    local.await(round);
    if (local.rank() == 0) {
        Scratch scratch(args.scratch);
        const auto terms = scratch.cut_array<std::span<std::byte>>(
            static_cast<std::size_t>(std::max(local.size(), 2)));
        for (auto& term : terms) term = scratch.cut(partial_bytes(args.reduce, bytes));
        const auto tickets =
            scratch.cut_array<typename W::Ticket>(static_cast<std::size_t>(across.size()));
        const auto combine = combine_by(args.reduce);
        const auto size = static_cast<std::size_t>(local.size());
        for (std::size_t peer = 0; peer < size; ++peer)
            args.reduce.widen(terms[peer], shown(static_cast<int>(peer)));
        for (std::size_t distance = 1; distance < size; distance *= 2)
            for (std::size_t peer = 0; peer + distance < size; peer += 2 * distance)
                combine(terms[peer], terms[peer], terms[peer + distance]);
        double_up(across, terms[0], terms[1], tickets, combine);
        args.reduce.narrow(sum(), terms[0]);
    }
    local.publish(local.rank() == 0 ? bytes : 0);
    local.await(round + 1);
    for_each_run(args, [&](std::span<std::byte> run, std::size_t at) {
        std::memcpy(run.data(), sum().data() + at, run.size());
    });
}

}  // namespace guozhuang::recursive

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::recursive_doubling> = [](AllreduceSite auto& site) {
    auto& wire = site.wire();
    using W = std::remove_reference_t<decltype(wire)>;
    auto args = site.cut(1);
    if (site.may_double_by_host(args.blocks.total_bytes()))
        return site.stage_on_host(args, [&](PeerMemory auto& local, AllreduceArgs given) {
            auto& across = site.across().front();
            given.scratch = site.scratch(
                recursive::host_doubling_scratch_bytes(local, across, given.blocks, given.reduce));
            recursive::host_doubling_allreduce(local, across, given);
        });
    args.scratch =
        site.scratch(recursive::doubling_scratch_bytes<W>(args.blocks, args.reduce, wire.size()));
    recursive::doubling_allreduce(wire, args);
};

}  // namespace guozhuang
