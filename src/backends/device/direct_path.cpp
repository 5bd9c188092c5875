#include "backends/device/direct_path.hpp"

#include <algorithm>
#include <guozhuang/error.hpp>
#include <optional>
#include <vector>

#include "backends/device/chunks.hpp"
#include "backends/rows.hpp"
#include "collectives/layout/rows.hpp"

namespace guozhuang::backends {

// --- operations ----------------------------------------------------------------------------------
// Each fills its half of an arena with a chunk, and takes from the halves of all ranks.

template <>
struct DirectPath::Work<OperationKind::allreduce> : ArenaWorkInPlace {
    using ArenaWorkInPlace::ArenaWorkInPlace;
    void fill(std::size_t chunk, std::size_t half) const {
        tensors.put_prescaled(chunk, own(half));
    }
    /// Its share of each run, for all ranks.
    void take(std::size_t chunk, std::size_t half) const {
        for (const auto& run : tensors.runs(chunk)) {
            std::vector<std::span<std::byte>> shares;
            for (int peer = 0; peer < ranks; ++peer)
                shares.push_back(block_of(run.in(halves.of(peer, half)), rank, ranks));
            reduce(reduction_of(bundle, run.dtype), shares, {shares.begin(), shares.end()});
        }
    }
    void finish(std::size_t chunk, std::size_t half) const { tensors.get(chunk, own(half)); }
};

template <>
struct DirectPath::Work<OperationKind::broadcast> : ArenaWorkInPlace {
    using ArenaWorkInPlace::ArenaWorkInPlace;
    void fill(std::size_t chunk, std::size_t half) const {
        if (rank == bundle.root) tensors.put(chunk, own(half));
    }
    void take(std::size_t chunk, std::size_t half) const {
        if (rank != bundle.root) tensors.get(chunk, halves.of(bundle.root, half));
    }
    void finish(std::size_t, std::size_t) const {}
};

/// With results. Each rank's tensors are parts, one for each reader or one for all, and each result
/// consists of parts of all ranks. Parts differ in size: chunks are of the largest.
struct DirectPath::WithResults : ArenaWork {
    WithResults(const ArenaHalves& through, const Results& of, const engine::Bundle& given,
                device::Stream& on, int readers)
        : ArenaWork(through, given, on),
          rows(of.rows_of(bundle)),
          room(halves.bytes() / static_cast<std::size_t>(readers) / line_bytes * line_bytes) {
        for (std::size_t i = 0; i < bundle.entries.size(); ++i)
            results.push_back(of.memory_for(bundle.entries[i], rows[i]));
    }
    std::size_t chunks() const noexcept { return fragments.size(); }
    void finish(std::size_t, std::size_t) const {}

    /// Calls visit(fragment, first) for each; `first` is its offset in the part for one reader.
    template <class Visit>
    void for_each_fragment(std::size_t chunk, Visit&& visit) const {
        std::size_t first = 0;
        for (const auto& fragment : fragments[chunk]) {
            visit(fragment, first);
            first += room_for(fragment);
        }
    }
    /// Cuts the entry's tensor into parts of these numbers of rows.
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
            for (int peer = 0; peer < ranks; ++peer) {
                const auto part = part_of(parts[static_cast<std::size_t>(peer)], fragment);
                copies.push_back({part, halves.of(peer, half).subspan(begin + first, part.size())});
            }
        });
        copy(copies);
    }
    void fill(std::size_t chunk, std::size_t half) const {
        const auto into = own(half);
        Copies copies;
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto dtype = bundle.entries[fragment.tensor].tensor.dtype;
            auto begin = first;
            for (const auto& all : contributions[fragment.tensor]) {
                const auto part = part_of(all, fragment);
                copies.push_back({into.subspan(begin, part.size()), part, dtype});
                begin += room;
            }
        });
        copy(copies, {.scale = bundle.description->prescale});
    }

    const std::vector<std::vector<std::int64_t>> rows;
    const std::size_t room;                        ///< for one reader in a half
    std::vector<std::span<std::byte>> results;     ///< by entry
    std::vector<std::vector<Fragment>> fragments;  ///< by chunk
    /// By entry and reader: what this rank's tensor has for it.
    std::vector<std::vector<std::span<std::byte>>> contributions;
};

template <>
struct DirectPath::Work<OperationKind::all_gather> : WithResults {
    Work(const ArenaHalves& through, const Results& of, const engine::Bundle& given,
         device::Stream& on)
        : WithResults(through, of, given, on, 1) {
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

template <>
struct DirectPath::Work<OperationKind::all_to_all> : WithResults {
    Work(const ArenaHalves& through, const Results& of, const engine::Bundle& given,
         device::Stream& on)
        : WithResults(through, of, given, on, through.ranks()) {
        std::vector<std::int64_t> most_rows;
        for (const auto& entry : bundle.entries)
            most_rows.push_back(std::ranges::max(entry.splits));
        const auto all = of.gather(bundle, most_rows);
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
        take_parts(chunk, half, static_cast<std::size_t>(rank) * room);
    }
};

template <>
struct DirectPath::Work<OperationKind::reduce_scatter> : WithResults {
    Work(const ArenaHalves& through, const Results& of, const engine::Bundle& given,
         device::Stream& on)
        : WithResults(through, of, given, on, through.ranks()) {
        std::vector<std::size_t> largest;
        for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
            const auto& entry = bundle.entries[i];
            const auto shares = reduce_scatter_rows(entry.tensor.shape[0], entry.splits, ranks);
            contributions.push_back(parts_of(i, shares));
            largest.push_back(static_cast<std::size_t>(std::ranges::max(shares)) *
                              row_bytes(entry.tensor));
        }
        fragments = chunks_of(largest, room);
    }
    void take(std::size_t chunk, std::size_t half) const {
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto output = part_of(results[fragment.tensor], fragment);
            const auto begin = static_cast<std::size_t>(rank) * room + first;
            std::vector<std::span<const std::byte>> inputs;
            for (int peer = 0; peer < ranks; ++peer)
                inputs.push_back(halves.of(peer, half).subspan(begin, output.size()));
            const auto dtype = bundle.entries[fragment.tensor].tensor.dtype;
            reduce(reduction_of(bundle, dtype), std::span(&output, 1), inputs);
        });
    }
};

// --- the path ------------------------------------------------------------------------------------

bool DirectPath::supports(const engine::Bundle& bundle) const noexcept {
    bool moves = false;
    visit(bundle.description->operation,
          [&]<OperationKind kind>() { moves = requires { sizeof(Work<kind>); }; });
    return moves && bundle.description->op != ReduceOp::adasum;
}

void DirectPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    const auto& given = bundle->bundle();
    visit(given.description->operation, [&]<OperationKind kind>() {
        if constexpr (requires { sizeof(Work<kind>); })
            run(Work<kind>(halves_, results_, given, stream));
        else
            throw Error(ErrorCode::internal, "no operation on tensors of a device");
    });
}

/// A chunk is filled into a half that all have taken. The next call that waits announces that, too,
/// but for the first chunk, if another one is filled before that.
template <class Operation>
void DirectPath::run(const Operation& operation) {
    using Moment = PeerWords::Moment;
    auto& words = halves_.words();
    auto& stream = operation.stream;
    const auto chunks = operation.chunks();
    halves_.enqueue(
        chunks,
        [&](std::size_t chunk, std::uint32_t number) {
            operation.fill(chunk, number % 2);
            if (chunk == 0 && chunks > 1)
                words.meet(stream, Moment{Phase::filled, number + 1}, std::nullopt);
        },
        [&](std::size_t chunk, std::uint32_t number) {
            const auto last_filled = number + (chunk + 1 < chunks ? 1 : 0);
            words.meet(stream, Moment{Phase::filled, last_filled + 1},
                       Moment{Phase::filled, number + 1});
            operation.take(chunk, number % 2);
            const Moment taken{Phase::taken, number + 1};
            words.meet(stream, taken, taken);
            operation.finish(chunk, number % 2);
        });
}

}  // namespace guozhuang::backends
