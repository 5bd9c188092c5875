#include "backends/device/ring_path.hpp"

#include <algorithm>
#include <guozhuang/error.hpp>
#include <utility>
#include <vector>

#include "backends/device/chunks.hpp"
#include "backends/device/packing.hpp"
#include "backends/rows.hpp"
#include "collectives/ring/all_gather.hpp"
#include "collectives/ring/neighbours.hpp"
#include "collectives/ring/reduce_scatter.hpp"

namespace guozhuang::backends {

using protocol::OperationKind;

// --- operations ----------------------------------------------------------------------------------
// Each fills a half of this rank's arena with a chunk, takes part in some hops of it, and copies it
// out of there.

struct RingPath::Operation : BundleWork {
    struct Hops {
        int first = 0, end = 0;
    };
    Operation(RingPath& of, const engine::Bundle& given, device::Stream& on)
        : BundleWork{*of.driver_, given, on}, path(of) {}
    std::span<std::byte> own(std::size_t half) const { return path.half(path.rank_, half); }
    std::span<std::byte> left(std::size_t half) const { return path.half(path.left_, half); }

    RingPath& path;
};

/// Of tensors in place.
struct RingPath::InPlace : Operation {
    InPlace(RingPath& of, const engine::Bundle& given, device::Stream& on)
        : Operation(of, given, on), tensors(*this, path.half_bytes()) {}
    std::size_t chunks() const noexcept { return tensors.chunks(); }

    const PackedTensors tensors;
};

/// Each run of elements is cut into blocks, one for each rank.
struct RingPath::Allreduce : InPlace {
    using InPlace::InPlace;
    Hops hops() const noexcept { return {0, 2 * (path.ranks_ - 1)}; }
    void fill(std::size_t chunk, std::size_t half) const {
        tensors.put_prescaled(chunk, own(half));
    }
    void hop(std::size_t chunk, std::size_t half, int step) const {
        const auto additions = path.ranks_ - 1;
        for (const auto& run : tensors.runs(chunk))
            step < additions ? add(run, half, step) : pass(run, half, step - additions);
    }
    void finish(std::size_t chunk, std::size_t half) const { tensors.get(chunk, own(half)); }

    /// Only the last sum is divided and scaled.
    void add(const Packing::Run& run, std::size_t half, int step) const {
        const auto block = ring::reduce_scatter_hop(path.rank_, step, path.ranks_).receive;
        const auto sum = block_of(run.in(own(half)), block, path.ranks_);
        const auto reduction = block == path.rank_
                                   ? reduction_of(bundle, run.dtype)
                                   : device::Reduction{.op = bundle.op, .dtype = run.dtype};
        reduce(reduction, std::span(&sum, 1),
               {block_of(run.in(left(half)), block, path.ranks_), sum});
    }
    void pass(const Packing::Run& run, std::size_t half, int step) const {
        const auto block = ring::all_gather_hop(path.rank_, step, path.ranks_).receive;
        copy(block_of(run.in(own(half)), block, path.ranks_),
             block_of(run.in(left(half)), block, path.ranks_));
    }
};

/// In each hop one rank more has the chunk, from the root to its left neighbour.
struct RingPath::Broadcast : InPlace {
    using InPlace::InPlace;
    Hops hops() const noexcept {
        const auto distance = ring::wrap(path.rank_ - bundle.root, path.ranks_);
        return {std::max(distance - 1, 0), distance};
    }
    void fill(std::size_t chunk, std::size_t half) const {
        if (path.rank_ == bundle.root) tensors.put(chunk, own(half));
    }
    void hop(std::size_t chunk, std::size_t half, int) const {
        const auto bytes = tensors.bytes(chunk);
        copy(own(half).first(bytes), left(half).first(bytes));
    }
    void finish(std::size_t chunk, std::size_t half) const {
        if (path.rank_ != bundle.root) tensors.get(chunk, own(half));
    }
};

/// Ranks have tensors of different sizes: a chunk has a block of the same size for each rank, for
/// so much of the largest.
struct RingPath::AllGather : Operation {
    AllGather(RingPath& of, const engine::Bundle& given, device::Stream& on)
        : Operation(of, given, on) {
        const auto rows = path.results_.rows_of(bundle);
        std::vector<std::size_t> largest;
        for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
            const auto& entry = bundle.entries[i];
            const auto bytes = row_bytes(entry.tensor);
            parts.push_back(cut_rows(path.results_.memory_for(entry, rows[i]), rows[i], bytes));
            largest.push_back(static_cast<std::size_t>(std::ranges::max(rows[i])) * bytes);
        }
        fragments = chunks_of(largest, block(own(0), 0).size());
    }
    std::size_t chunks() const noexcept { return fragments.size(); }
    Hops hops() const noexcept { return {0, path.ranks_ - 1}; }
    void fill(std::size_t chunk, std::size_t half) const {
        auto room = block(own(half), path.rank_);
        Copies copies;
        for (const auto& fragment : fragments[chunk]) {
            const auto part = part_of(bundle.entries[fragment.tensor].tensor.memory(), fragment);
            copies.push_back({take(room, fragment.bytes).first(part.size()), part});
        }
        copy(copies);
    }
    void hop(std::size_t chunk, std::size_t half, int step) const {
        const auto rank = ring::all_gather_hop(path.rank_, step, path.ranks_).receive;
        std::size_t bytes = 0;
        for (const auto& fragment : fragments[chunk]) bytes += room_for(fragment);
        copy(block(own(half), rank).first(bytes), block(left(half), rank).first(bytes));
    }
    void finish(std::size_t chunk, std::size_t half) const {
        Copies copies;
        for (int rank = 0; rank < path.ranks_; ++rank) {
            auto room = block(own(half), rank);
            for (const auto& fragment : fragments[chunk]) {
                const auto part =
                    part_of(parts[fragment.tensor][static_cast<std::size_t>(rank)], fragment);
                copies.push_back({part, take(room, fragment.bytes).first(part.size())});
            }
        }
        copy(copies);
    }
    std::span<std::byte> block(std::span<std::byte> half, int rank) const {
        const auto bytes =
            half.size() / static_cast<std::size_t>(path.ranks_) / line_bytes * line_bytes;
        return half.subspan(static_cast<std::size_t>(rank) * bytes, bytes);
    }

    std::vector<std::vector<std::span<std::byte>>> parts;  ///< of results, by entry and rank
    std::vector<std::vector<Fragment>> fragments;          ///< by chunk
};

// --- the path ------------------------------------------------------------------------------------

RingPath::RingPath(std::shared_ptr<device::Driver> driver, PeerArenas& arenas,
                   const Results& results)
    : driver_(std::move(driver)),
      rank_(arenas.rank()),
      ranks_(arenas.ranks()),
      left_(ring::left_of(rank_, ranks_)),
      right_(ring::right_of(rank_, ranks_)),
      arenas_(arenas),
      results_(results) {}

bool RingPath::supports(const engine::Bundle& bundle) const noexcept {
    switch (bundle.operation) {
        case OperationKind::allreduce: return bundle.op != ReduceOp::adasum;
        case OperationKind::broadcast:
        case OperationKind::all_gather: return true;
        default: return false;
    }
}

std::size_t RingPath::half_bytes() const {
    return arenas_.of(rank_).size() / 2;
}

std::span<std::byte> RingPath::half(int rank, std::size_t half) const {
    return arenas_.of(rank).subspan(half * half_bytes(), half_bytes());
}

/// Times count hops, as many for each chunk as the operation with the most has.
std::uint32_t RingPath::begin_of(std::uint32_t number) const noexcept {
    return number * 2 * static_cast<std::uint32_t>(ranks_ - 1);
}

void RingPath::release() noexcept {
    arenas_.words().release(begin_of(chunks_));
}

void RingPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    const auto& given = bundle->bundle();
    switch (given.operation) {
        case OperationKind::allreduce: return run(Allreduce(*this, given, stream));
        case OperationKind::broadcast: return run(Broadcast(*this, given, stream));
        case OperationKind::all_gather: return run(AllGather(*this, given, stream));
        default: throw Error(ErrorCode::internal, "no operation of the ring path");
    }
}

template <class Kind>
void RingPath::run(const Kind& operation) {
    const auto chunks = operation.chunks();
    const auto first = chunks_.load();
    chunks_ = first + static_cast<std::uint32_t>(chunks);
    const auto number_of = [&](std::size_t chunk) {
        return first + static_cast<std::uint32_t>(chunk);
    };
    if (chunks > 0) fill(operation, 0, number_of(0));
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (chunk + 1 < chunks) fill(operation, chunk + 1, number_of(chunk + 1));
        go_around(operation, chunk, number_of(chunk));
        operation.finish(chunk, number_of(chunk) % 2);
    }
}

/// When the right neighbour is done with the chunk that was in this half before.
template <class Kind>
void RingPath::fill(const Kind& operation, std::size_t chunk, std::uint32_t number) {
    auto& words = arenas_.words();
    words.wait_for(right_, operation.stream, Phase::taken, begin_of(number - 1));
    operation.fill(chunk, number % 2);
    words.announce_to(right_, operation.stream, Phase::filled, begin_of(number + 1));
}

/// At the end the words are as far on all ranks, whichever hops the rank has taken part in.
template <class Kind>
void RingPath::go_around(const Kind& operation, std::size_t chunk, std::uint32_t number) {
    auto& words = arenas_.words();
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
