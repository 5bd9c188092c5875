#include "backends/device/direct_path.hpp"

#include <algorithm>
#include <guozhuang/error.hpp>
#include <utility>
#include <vector>

#include "backends/device/chunks.hpp"
#include "backends/device/packing.hpp"
#include "backends/rows.hpp"

namespace guozhuang::backends {

using protocol::OperationKind;

// --- operations ----------------------------------------------------------------------------------
// Each fills its half of an arena with a chunk, and takes from the halves of all ranks.

struct DirectPath::Operation : BundleWork {
    Operation(DirectPath& of, const engine::Bundle& given, device::Stream& on)
        : BundleWork{*of.driver_, given, on}, path(of) {}

    DirectPath& path;
};

/// Of tensors in place.
struct DirectPath::InPlace : Operation {
    InPlace(DirectPath& of, const engine::Bundle& given, device::Stream& on)
        : Operation(of, given, on), tensors(*this, path.half_bytes()) {}
    std::size_t chunks() const noexcept { return tensors.chunks(); }
    std::span<std::byte> own(std::size_t half) const { return path.half(path.rank_, half); }

    const PackedTensors tensors;
};

struct DirectPath::Allreduce : InPlace {
    using InPlace::InPlace;
    void fill(std::size_t chunk, std::size_t half) const {
        tensors.put_prescaled(chunk, own(half));
    }
    /// Its share of each run, for all ranks.
    void take(std::size_t chunk, std::size_t half) const {
        for (const auto& run : tensors.runs(chunk)) {
            std::vector<std::span<std::byte>> shares;
            for (int rank = 0; rank < path.ranks_; ++rank)
                shares.push_back(block_of(run.in(path.half(rank, half)), path.rank_, path.ranks_));
            reduce(reduction_of(bundle, run.dtype), shares, {shares.begin(), shares.end()});
        }
    }
    void finish(std::size_t chunk, std::size_t half) const { tensors.get(chunk, own(half)); }
};

struct DirectPath::Broadcast : InPlace {
    using InPlace::InPlace;
    void fill(std::size_t chunk, std::size_t half) const {
        if (path.rank_ == bundle.root) tensors.put(chunk, own(half));
    }
    void take(std::size_t chunk, std::size_t half) const {
        if (path.rank_ != bundle.root) tensors.get(chunk, path.half(bundle.root, half));
    }
    void finish(std::size_t, std::size_t) const {}
};

/// With results. Each rank's tensors are parts, one for each reader or one for all, and each result
/// consists of parts of all ranks. Parts differ in size: chunks are of the largest.
struct DirectPath::WithResults : Operation {
    WithResults(DirectPath& of, const engine::Bundle& given, device::Stream& on, int readers)
        : Operation(of, given, on),
          rows(path.results_.rows_of(bundle)),
          room(path.half_bytes() / static_cast<std::size_t>(readers) / line_bytes * line_bytes) {
        for (std::size_t i = 0; i < bundle.entries.size(); ++i)
            results.push_back(path.results_.memory_for(bundle.entries[i], rows[i]));
    }
    std::size_t chunks() const noexcept { return fragments.size(); }
    void finish(std::size_t, std::size_t) const {}

    /// visit(fragment, first): with where it lies in what is for one reader.
    template <class Visit>
    void for_each_fragment(std::size_t chunk, Visit&& visit) const {
        std::size_t first = 0;
        for (const auto& fragment : fragments[chunk]) {
            visit(fragment, first);
            first += room_for(fragment);
        }
    }
    /// Of the entry's tensor, for these rows each.
    std::vector<std::span<std::byte>> parts_of(std::size_t entry,
                                               std::span<const std::int64_t> counts) const {
        const auto& tensor = bundle.entries[entry].tensor;
        return cut_rows(tensor.memory(), counts, row_bytes(tensor));
    }
    /// Takes each rank's part of the results from its half, where it begins at `begin`.
    void take_parts(std::size_t chunk, std::size_t half, std::size_t begin) const {
        Copies copies;
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto entry = fragment.tensor;
            const auto parts =
                cut_rows(results[entry], rows[entry], row_bytes(bundle.entries[entry].tensor));
            for (int rank = 0; rank < path.ranks_; ++rank) {
                const auto part = part_of(parts[static_cast<std::size_t>(rank)], fragment);
                copies.push_back({part, path.half(rank, half).subspan(begin + first, part.size())});
            }
        });
        copy(copies);
    }
    void fill(std::size_t chunk, std::size_t half) const {
        const auto own = path.half(path.rank_, half);
        Copies copies;
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto dtype = bundle.entries[fragment.tensor].tensor.dtype;
            auto begin = first;
            for (const auto& all : contributions[fragment.tensor]) {
                const auto part = part_of(all, fragment);
                copies.push_back({own.subspan(begin, part.size()), part, dtype});
                begin += room;
            }
        });
        copy_prescaled(copies);
    }

    const std::vector<std::vector<std::int64_t>> rows;
    const std::size_t room;                        ///< for one reader in a half
    std::vector<std::span<std::byte>> results;     ///< by entry
    std::vector<std::vector<Fragment>> fragments;  ///< by chunk
    /// By entry and reader: what this rank's tensor has for it.
    std::vector<std::vector<std::span<std::byte>>> contributions;
};

struct DirectPath::AllGather : WithResults {
    AllGather(DirectPath& of, const engine::Bundle& given, device::Stream& on)
        : WithResults(of, given, on, 1) {
        std::vector<std::size_t> largest;
        for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
            const auto& tensor = bundle.entries[i].tensor;
            contributions.push_back({tensor.memory()});
            largest.push_back(static_cast<std::size_t>(std::ranges::max(rows[i])) *
                              row_bytes(tensor));
        }
        fragments = chunks_of(largest, room);
    }
    void take(std::size_t chunk, std::size_t half) const { take_parts(chunk, half, 0); }
};

struct DirectPath::AllToAll : WithResults {
    AllToAll(DirectPath& of, const engine::Bundle& given, device::Stream& on)
        : WithResults(of, given, on, of.ranks_) {
        std::vector<std::int64_t> most_rows;
        for (const auto& entry : bundle.entries)
            most_rows.push_back(std::ranges::max(entry.splits));
        const auto all = path.results_.gather(bundle, most_rows);
        std::vector<std::size_t> largest;
        for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
            contributions.push_back(parts_of(i, bundle.entries[i].splits));
            std::int64_t most = 0;
            for (std::size_t at = i; at < all.size(); at += bundle.entries.size())
                most = std::max(most, all[at]);
            largest.push_back(static_cast<std::size_t>(most) * row_bytes(bundle.entries[i].tensor));
        }
        fragments = chunks_of(largest, room);
    }
    void take(std::size_t chunk, std::size_t half) const {
        take_parts(chunk, half, static_cast<std::size_t>(path.rank_) * room);
    }
};

struct DirectPath::ReduceScatter : WithResults {
    ReduceScatter(DirectPath& of, const engine::Bundle& given, device::Stream& on)
        : WithResults(of, given, on, of.ranks_) {
        std::vector<std::size_t> largest;
        for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
            const auto shares = reduce_scatter_rows(bundle.entries[i].tensor.shape[0], path.ranks_);
            contributions.push_back(parts_of(i, shares));
            largest.push_back(contributions.back().front().size());
        }
        fragments = chunks_of(largest, room);
    }
    void take(std::size_t chunk, std::size_t half) const {
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto output = part_of(results[fragment.tensor], fragment);
            const auto begin = static_cast<std::size_t>(path.rank_) * room + first;
            std::vector<std::span<const std::byte>> inputs;
            for (int rank = 0; rank < path.ranks_; ++rank)
                inputs.push_back(path.half(rank, half).subspan(begin, output.size()));
            const auto dtype = bundle.entries[fragment.tensor].tensor.dtype;
            reduce(reduction_of(bundle, dtype), std::span(&output, 1), inputs);
        });
    }
};

// --- the path ------------------------------------------------------------------------------------

DirectPath::DirectPath(std::shared_ptr<device::Driver> driver, PeerArenas& arenas,
                       const Results& results)
    : driver_(std::move(driver)),
      rank_(arenas.rank()),
      ranks_(arenas.ranks()),
      arenas_(arenas),
      results_(results) {}

bool DirectPath::supports(const engine::Bundle& bundle) const noexcept {
    return bundle.op != ReduceOp::adasum;
}

std::size_t DirectPath::half_bytes() const {
    return arenas_.of(rank_).size() / 2;
}

std::span<std::byte> DirectPath::half(int rank, std::size_t half) const {
    return arenas_.of(rank).subspan(half * half_bytes(), half_bytes());
}

void DirectPath::release() noexcept {
    arenas_.words().release(chunks_);
}

void DirectPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    const auto& given = bundle->bundle();
    switch (given.operation) {
        case OperationKind::allreduce: return run(Allreduce(*this, given, stream));
        case OperationKind::broadcast: return run(Broadcast(*this, given, stream));
        case OperationKind::all_gather: return run(AllGather(*this, given, stream));
        case OperationKind::all_to_all: return run(AllToAll(*this, given, stream));
        case OperationKind::reduce_scatter: return run(ReduceScatter(*this, given, stream));
        default: throw Error(ErrorCode::internal, "no operation on tensors of a device");
    }
}

template <class Kind>
void DirectPath::run(const Kind& operation) {
    auto& stream = operation.stream;
    const auto chunks = operation.chunks();
    const auto before = chunks_.load();
    chunks_ = before + static_cast<std::uint32_t>(chunks);
    const auto time_of = [&](std::size_t chunk) {
        return before + static_cast<std::uint32_t>(chunk) + 1;
    };
    const auto fill = [&](std::size_t chunk) {
        operation.fill(chunk, time_of(chunk) % 2);
        arenas_.words().announce(stream, Phase::filled, time_of(chunk));
    };
    if (chunks > 0) fill(0);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (chunk + 1 < chunks) fill(chunk + 1);  // in the half that all have taken
        const auto time = time_of(chunk);
        arenas_.words().wait_for_all(stream, Phase::filled, time);
        operation.take(chunk, time % 2);
        arenas_.words().announce(stream, Phase::taken, time);
        arenas_.words().wait_for_all(stream, Phase::taken, time);
        operation.finish(chunk, time % 2);
    }
}

}  // namespace guozhuang::backends
