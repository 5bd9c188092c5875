#include "backends/device/ring_path.hpp"

#include <algorithm>
#include <guozhuang/error.hpp>
#include <utility>
#include <vector>

#include "backends/device/chunks.hpp"
#include "backends/rows.hpp"
#include "collectives/layout/rows.hpp"
#include "collectives/ring/neighbours.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/ring/ring_reduce_scatter.hpp"

namespace guozhuang::backends {

// --- operations ----------------------------------------------------------------------------------
// Each fills a half of this rank's arena with a chunk, takes part in some hops of it, and copies it
// out of there.

struct RingPath::Hops {
    int first = 0, end = 0;
};

namespace {

std::span<std::byte> left_half(const ArenaWork& work, std::size_t half) {
    return work.halves.of(ring::left_of(work.rank, work.ranks), half);
}

}  // namespace

/// Each run of elements is cut into blocks, one for each rank.
template <>
struct RingPath::Work<OperationKind::allreduce> : ArenaWorkInPlace {
    using ArenaWorkInPlace::ArenaWorkInPlace;
    Hops hops() const noexcept { return {0, 2 * (ranks - 1)}; }
    void fill(std::size_t chunk, std::size_t half) const {
        tensors.put_prescaled(chunk, own(half));
    }
    void hop(std::size_t chunk, std::size_t half, int step) const {
        const auto additions = ranks - 1;
        for (const auto& run : tensors.runs(chunk))
            step < additions ? add(run, half, step) : pass(run, half, step - additions);
    }
    void finish(std::size_t chunk, std::size_t half) const { tensors.get(chunk, own(half)); }

    /// Only the last sum is divided and scaled.
    void add(const Packing::Run& run, std::size_t half, int step) const {
        const auto block = ring::reduce_scatter_hop(rank, step, ranks).receive;
        const auto sum = block_of(run.in(own(half)), block, ranks);
        const auto reduction =
            block == rank ? reduction_of(bundle, run.dtype)
                          : device::Reduction{.op = bundle.description->op, .dtype = run.dtype};
        reduce(reduction, std::span(&sum, 1),
               {block_of(run.in(left_half(*this, half)), block, ranks), sum});
    }
    void pass(const Packing::Run& run, std::size_t half, int step) const {
        const auto block = ring::all_gather_hop(rank, step, ranks).receive;
        copy({{block_of(run.in(own(half)), block, ranks),
               block_of(run.in(left_half(*this, half)), block, ranks)}});
    }
};

/// In each hop one rank more has the chunk, from the root to its left neighbour.
template <>
struct RingPath::Work<OperationKind::broadcast> : ArenaWorkInPlace {
    using ArenaWorkInPlace::ArenaWorkInPlace;
    Hops hops() const noexcept {
        const auto distance = ring::wrap(rank - bundle.root, ranks);
        return {std::max(distance - 1, 0), distance};
    }
    void fill(std::size_t chunk, std::size_t half) const {
        if (rank == bundle.root) tensors.put(chunk, own(half));
    }
    void hop(std::size_t chunk, std::size_t half, int) const {
        const auto bytes = tensors.bytes(chunk);
        copy({{own(half).first(bytes), left_half(*this, half).first(bytes)}});
    }
    void finish(std::size_t chunk, std::size_t half) const {
        if (rank != bundle.root) tensors.get(chunk, own(half));
    }
};

/// Ranks have tensors of different sizes: a chunk has a block of the same size for each rank, for
/// so much of the largest.
template <>
struct RingPath::Work<OperationKind::all_gather> : ArenaWork {
    Work(const ArenaHalves& through, const Results& results, const engine::Bundle& given,
         device::Stream& on)
        : ArenaWork(through, given, on) {
        const auto rows = results.rows_of(bundle);
        std::vector<std::size_t> largest;
        for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
            const auto& entry = bundle.entries[i];
            const auto bytes = row_bytes(entry.tensor);
            parts.push_back(cut_rows(results.memory_for(entry, rows[i]), rows[i], bytes));
            largest.push_back(static_cast<std::size_t>(std::ranges::max(rows[i])) * bytes);
        }
        fragments = chunks_of(largest, block(own(0), 0).size());
    }
    std::size_t chunks() const noexcept { return fragments.size(); }
    Hops hops() const noexcept { return {0, ranks - 1}; }
    void fill(std::size_t chunk, std::size_t half) const {
        auto room = block(own(half), rank);
        Copies copies;
        for (const auto& fragment : fragments[chunk]) {
            const auto part = part_of(bundle.entries[fragment.tensor].tensor.memory(), fragment);
            copies.push_back({take(room, fragment.bytes).first(part.size()), part});
        }
        copy(copies);
    }
    void hop(std::size_t chunk, std::size_t half, int step) const {
        const auto from = ring::all_gather_hop(rank, step, ranks).receive;
        std::size_t bytes = 0;
        for (const auto& fragment : fragments[chunk]) bytes += room_for(fragment);
        copy({{block(own(half), from).first(bytes),
               block(left_half(*this, half), from).first(bytes)}});
    }
    void finish(std::size_t chunk, std::size_t half) const {
        Copies copies;
        for (int peer = 0; peer < ranks; ++peer) {
            auto room = block(own(half), peer);
            for (const auto& fragment : fragments[chunk]) {
                const auto part =
                    part_of(parts[fragment.tensor][static_cast<std::size_t>(peer)], fragment);
                copies.push_back({part, take(room, fragment.bytes).first(part.size())});
            }
        }
        copy(copies);
    }
    std::span<std::byte> block(std::span<std::byte> half, int of_rank) const {
        const auto bytes = half.size() / static_cast<std::size_t>(ranks) / line_bytes * line_bytes;
        return half.subspan(static_cast<std::size_t>(of_rank) * bytes, bytes);
    }

    std::vector<std::vector<std::span<std::byte>>> parts;  ///< of results, by entry and rank
    std::vector<std::vector<Fragment>> fragments;          ///< by chunk
};

// --- the path ------------------------------------------------------------------------------------

RingPath::RingPath(std::shared_ptr<device::Driver> driver, std::shared_ptr<PeerArenas> arenas,
                   const Results& results)
    : halves_(std::move(driver), std::move(arenas)),
      left_(ring::left_of(halves_.rank(), halves_.ranks())),
      right_(ring::right_of(halves_.rank(), halves_.ranks())),
      results_(results) {}

bool RingPath::supports(const engine::Bundle& bundle) const noexcept {
    bool moves = false;
    visit(bundle.description->operation,
          [&]<OperationKind kind>() { moves = requires { sizeof(Work<kind>); }; });
    return moves && bundle.description->op != ReduceOp::adasum;
}

/// Times count hops, as many for each chunk as the operation with the most has.
std::uint32_t RingPath::begin_of(std::uint32_t number) const noexcept {
    return number * 2 * static_cast<std::uint32_t>(halves_.ranks() - 1);
}

void RingPath::release() noexcept {
    halves_.words().release(begin_of(halves_.chunks()));
}

void RingPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    const auto& given = bundle->bundle();
    visit(given.description->operation, [&]<OperationKind kind>() {
        if constexpr (requires { sizeof(Work<kind>); })
            run(Work<kind>(halves_, results_, given, stream));
        else
            throw Error(ErrorCode::internal, "no operation of the ring path");
    });
}

template <class Operation>
void RingPath::run(const Operation& operation) {
    halves_.enqueue(
        operation.chunks(),
        [&](std::size_t chunk, std::uint32_t number) { fill(operation, chunk, number); },
        [&](std::size_t chunk, std::uint32_t number) {
            go_around(operation, chunk, number);
            operation.finish(chunk, number % 2);
        });
}

/// When the right neighbour is done with the chunk that was in this half before.
template <class Operation>
void RingPath::fill(const Operation& operation, std::size_t chunk, std::uint32_t number) {
    auto& words = halves_.words();
    words.wait_for(right_, operation.stream, Phase::taken, begin_of(number - 1));
    operation.fill(chunk, number % 2);
    words.announce_to(right_, operation.stream, Phase::filled, begin_of(number + 1));
}

/// At the end the words are as far on all ranks, whichever hops the rank has taken part in.
template <class Operation>
void RingPath::go_around(const Operation& operation, std::size_t chunk, std::uint32_t number) {
    auto& words = halves_.words();
    auto& stream = operation.stream;
    const auto begin = begin_of(number), end = begin_of(number + 1);
    const auto hops = operation.hops();
    for (int hop = hops.first; hop < hops.end; ++hop) {
        const auto time = begin + static_cast<std::uint32_t>(hop);
        if (hop > hops.first) words.announce_to(right_, stream, Phase::passed, time);
        if (hop == 0)
            words.wait_for(left_, stream, Phase::filled, end);
        else
            words.wait_for(left_, stream, Phase::passed, time);
        operation.hop(chunk, number % 2, hop);
    }
    words.announce_to(right_, stream, Phase::passed, end);
    words.announce_to(left_, stream, Phase::taken, end);
}

}  // namespace guozhuang::backends
