// Ring through the arenas of devices, each of which reaches only its left neighbour's memory. Each
// rank writes its contribution to its own arena, and in each hop moves one block from its left
// neighbour's arena to its own. The hops of an allreduce are those of collectives/ring: ranks-1
// that add the neighbour's block to the own one, by one kernel each, then as many that copy sums.
//
//     fill 0, fill 1, hops of 0, finish 0, fill 2, hops of 1, finish 1, ...
//
// A hop waits until the left neighbour has `filled` its half, or `passed` the hop before; a half is
// filled again when the right neighbour has `taken` all of it. No other wait is needed: when a sum
// has come around the ring, the right neighbour has read the block that the sum replaces.
//
// P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations,
// JPDC 69, 2009.
//
// Cost of an allreduce of n bytes on p ranks, for each chunk: 2(p-1) hops, each of n/p.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/concepts/arena_site.hpp"
#include "collectives/device/chunks_in_halves.hpp"
#include "collectives/layout/fragments.hpp"
#include "collectives/layout/rows.hpp"
#include "collectives/operation_kind.hpp"
#include "collectives/ring/neighbours.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/ring/ring_reduce_scatter.hpp"

namespace guozhuang::arenas {

/// around<OperationKind::broadcast>(site) does the broadcast of a site. Null for operations that
/// have no ring.
template <OperationKind kind>
inline constexpr auto around = nullptr;

/// Words count hops. Every chunk advances them by 2(ranks-1), the hops of an allreduce, whatever
/// the operation.
constexpr std::uint32_t count_before(std::uint32_t number, int ranks) noexcept {
    return number * 2 * static_cast<std::uint32_t>(ranks - 1);
}

/// How many chunks go around, and in which hops of each this rank takes part.
struct HopRange {
    std::size_t chunks = 0;
    int first_hop = 0, end_hop = 0;
};

/// Fills a half when the right neighbour is done with its last chunk. At the end the words have the
/// same values on all ranks, including ranks that skipped hops. `fill` and `finish` are called with
/// a chunk's index and its half, `hop` with the hop's number as well.
template <ArenaSite S, class Fill, class Hop, class Finish>
void go_around(S& site, const HopRange& hops, const Fill& fill, const Hop& hop,
               const Finish& finish) {
    const int left = ring::left_of(site.rank(), site.ranks()),
              right = ring::right_of(site.rank(), site.ranks());
    const auto count = [&](std::uint32_t number) { return count_before(number, site.ranks()); };
    enqueue_chunks(
        site, hops.chunks,
        [&](std::size_t chunk, std::uint32_t number) {
            site.wait_for(right, {Phase::taken, count(number - 1)});
            fill(chunk, number % 2);
            site.announce_to(right, {Phase::filled, count(number + 1)});
        },
        [&](std::size_t chunk, std::uint32_t number) {
            const auto begin = count(number), end = count(number + 1);
            for (int step = hops.first_hop; step < hops.end_hop; ++step) {
                const auto now = begin + static_cast<std::uint32_t>(step);
                if (step > hops.first_hop) site.announce_to(right, {Phase::passed, now});
                site.wait_for(left,
                              step == 0 ? Moment{Phase::filled, end} : Moment{Phase::passed, now});
                hop(chunk, number % 2, step);
            }
            site.announce_to(right, {Phase::passed, end});
            site.announce_to(left, {Phase::taken, end});
            finish(chunk, number % 2);
        });
}

template <ArenaSite S>
std::span<std::byte> left_half(S& site, std::size_t half) {
    return site.half(ring::left_of(site.rank(), site.ranks()), half);
}

/// Each run of elements is cut into blocks, one for each rank. Only the last sum is divided and
/// scaled.
template <>
inline constexpr auto around<OperationKind::allreduce> = []<ArenaSite S>(S& site) {
    const PackedTensors tensors(site);
    const int rank = site.rank(), ranks = site.ranks();
    const auto own = [&](std::size_t half) { return site.half(rank, half); };
    const auto add = [&](const auto& run, std::size_t half, int step) {
        const auto block = ring::reduce_scatter_hop(rank, step, ranks).receive;
        const auto sum = block_of(run.in(own(half)), block, ranks);
        const std::vector<std::span<const std::byte>> inputs{
            block_of(run.in(left_half(site, half)), block, ranks), sum};
        if (block == rank)
            site.reduce(run.dtype, std::span(&sum, 1), inputs);
        else
            site.add(run.dtype, std::span(&sum, 1), inputs);
    };
    const auto pass = [&](const auto& run, std::size_t half, int step) {
        const auto block = ring::all_gather_hop(rank, step, ranks).receive;
        site.copy({{block_of(run.in(own(half)), block, ranks),
                    block_of(run.in(left_half(site, half)), block, ranks)}});
    };
    go_around(
        site, {tensors.chunks(), 0, 2 * (ranks - 1)},
        [&](std::size_t chunk, std::size_t half) { tensors.put_prescaled(chunk, own(half)); },
        [&](std::size_t chunk, std::size_t half, int step) {
            for (const auto& run : tensors.runs(chunk))
                step < ranks - 1 ? add(run, half, step) : pass(run, half, step - (ranks - 1));
        },
        [&](std::size_t chunk, std::size_t half) { tensors.get(chunk, own(half)); });
};

/// Each hop brings the chunk to one more rank, from the root around to its left neighbour.
template <>
inline constexpr auto around<OperationKind::broadcast> = []<ArenaSite S>(S& site) {
    const PackedTensors tensors(site);
    const int distance = ring::wrap(site.rank() - site.root(), site.ranks());
    const auto own = [&](std::size_t half) { return site.half(site.rank(), half); };
    go_around(
        site, {tensors.chunks(), std::max(distance - 1, 0), distance},
        [&](std::size_t chunk, std::size_t half) {
            if (distance == 0) tensors.put(chunk, own(half));
        },
        [&](std::size_t chunk, std::size_t half, int) {
            const auto bytes = tensors.bytes(chunk);
            site.copy({{own(half).first(bytes), left_half(site, half).first(bytes)}});
        },
        [&](std::size_t chunk, std::size_t half) {
            if (distance > 0) tensors.get(chunk, own(half));
        });
};

/// Ranks have tensors of different sizes, but a chunk has a block of the same size for each rank:
/// the size that the largest tensor needs.
template <>
inline constexpr auto around<OperationKind::all_gather> = []<ArenaSite S>(S& site) {
    const int rank = site.rank(), ranks = site.ranks();
    const auto rows = site.rows();
    std::vector<std::vector<std::span<std::byte>>> parts;  // of results, by tensor and rank
    std::vector<std::size_t> largest;
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto row_bytes = site.tensor(i).row_bytes;
        parts.push_back(cut_rows(site.result(i, rows[i]), rows[i], row_bytes));
        largest.push_back(static_cast<std::size_t>(std::ranges::max(rows[i])) * row_bytes);
    }
    const auto block_bytes =
        site.half_bytes() / static_cast<std::size_t>(ranks) / line_bytes * line_bytes;
    const auto block = [&](std::span<std::byte> half, int of_rank) {
        return half.subspan(static_cast<std::size_t>(of_rank) * block_bytes, block_bytes);
    };
    const auto chunks = chunks_of(largest, block_bytes);
    const auto fill = [&](std::size_t chunk, std::size_t half) {
        auto room = block(site.half(rank, half), rank);
        typename S::Copies copies;
        for (const auto& fragment : chunks[chunk]) {
            const auto part = part_of(site.tensor(fragment.tensor).memory, fragment);
            copies.push_back({take(room, fragment.bytes).first(part.size()), part});
        }
        site.copy(copies);
    };
    const auto hop = [&](std::size_t chunk, std::size_t half, int step) {
        const auto from = ring::all_gather_hop(rank, step, ranks).receive;
        std::size_t bytes = 0;
        for (const auto& fragment : chunks[chunk]) bytes += room_for(fragment);
        site.copy({{block(site.half(rank, half), from).first(bytes),
                    block(left_half(site, half), from).first(bytes)}});
    };
    const auto finish = [&](std::size_t chunk, std::size_t half) {
        typename S::Copies copies;
        for (int peer = 0; peer < ranks; ++peer) {
            auto room = block(site.half(rank, half), peer);
            for (const auto& fragment : chunks[chunk]) {
                const auto part =
                    part_of(parts[fragment.tensor][static_cast<std::size_t>(peer)], fragment);
                copies.push_back({part, take(room, fragment.bytes).first(part.size())});
            }
        }
        site.copy(copies);
    };
    go_around(site, {chunks.size(), 0, ranks - 1}, fill, hop, finish);
};

}  // namespace guozhuang::arenas
