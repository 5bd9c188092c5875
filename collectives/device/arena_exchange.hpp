// Direct exchange through the arenas of devices whose memory all ranks reach. Each rank writes its
// contribution to its own arena, and reads what it needs from all arenas with its own kernels and
// copies. In an allreduce each rank reduces one block and writes the result to all arenas.
//
//     fill 0, fill 1, meet, take 0, meet, finish 0, fill 2, meet, take 1, meet, finish 1, ...
//
// The streams meet in the same order on all ranks, and a rank announces what it has done before it
// waits for the others, so the streams cannot deadlock.
//
// Cost of an allreduce of n bytes, for each chunk two meetings; a rank copies n to its arena and
// back, and reads and writes n of all arenas together.
// Order: an element is summed along the host's tree over the ranks, so every path gives the same
// bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collectives/concepts/arena_site.hpp"
#include "collectives/device/chunks_in_halves.hpp"
#include "collectives/layout/fragments.hpp"
#include "collectives/layout/rows.hpp"
#include "collectives/operation_kind.hpp"

namespace guozhuang::arenas {

/// exchange<OperationKind::broadcast>(site) does the broadcast of a site. Null for operations that
/// have no direct exchange.
template <OperationKind kind>
inline constexpr auto exchange = nullptr;

/// Fills a half only after all ranks have taken its last chunk. Each fill is announced by the next
/// meet(). The first of several chunks is announced at once, so that peers need not wait for the
/// second fill. `fill`, `take` and `finish` are called with a chunk's index and its half.
template <ArenaSite S, class Fill, class Take, class Finish>
void exchange_chunks(S& site, std::size_t chunks, const Fill& fill, const Take& take,
                     const Finish& finish) {
    enqueue_chunks(
        site, chunks,
        [&](std::size_t chunk, std::uint32_t number) {
            fill(chunk, number % 2);
            if (chunk == 0 && chunks > 1)
                site.meet(Moment{Phase::filled, number + 1}, std::nullopt);
        },
        [&](std::size_t chunk, std::uint32_t number) {
            const auto last_filled = number + (chunk + 1 < chunks ? 1 : 0);
            site.meet(Moment{Phase::filled, last_filled + 1}, Moment{Phase::filled, number + 1});
            take(chunk, number % 2);
            const Moment taken{Phase::taken, number + 1};
            site.meet(taken, taken);
            finish(chunk, number % 2);
        });
}

inline constexpr auto nothing_to_finish = [](std::size_t, std::size_t) {};

template <>
inline constexpr auto exchange<OperationKind::allreduce> = []<ArenaSite S>(S& site) {
    const PackedTensors tensors(site);
    const auto take_share = [&](std::size_t chunk, std::size_t half) {
        for (const auto& run : tensors.runs(chunk)) {
            std::vector<std::span<std::byte>> shares;
            for (int peer = 0; peer < site.ranks(); ++peer)
                shares.push_back(
                    block_of(run.in(site.half(peer, half)), site.rank(), site.ranks()));
            site.reduce(run.dtype, shares, {shares.begin(), shares.end()});
        }
    };
    exchange_chunks(
        site, tensors.chunks(),
        [&](std::size_t chunk, std::size_t half) {
            tensors.put_prescaled(chunk, site.half(site.rank(), half));
        },
        take_share,
        [&](std::size_t chunk, std::size_t half) {
            tensors.get(chunk, site.half(site.rank(), half));
        });
};

template <>
inline constexpr auto exchange<OperationKind::broadcast> = []<ArenaSite S>(S& site) {
    const PackedTensors tensors(site);
    const bool is_root = site.rank() == site.root();
    exchange_chunks(
        site, tensors.chunks(),
        [&](std::size_t chunk, std::size_t half) {
            if (is_root) tensors.put(chunk, site.half(site.root(), half));
        },
        [&](std::size_t chunk, std::size_t half) {
            if (!is_root) tensors.get(chunk, site.half(site.root(), half));
        },
        nothing_to_finish);
};

/// For operations with results. Each rank's tensors are cut into parts, one for each reader or one
/// for all, and each result consists of parts from all ranks. Parts differ in size; the largest one
/// determines the chunks.
template <ArenaSite S>
class Parts {
public:
    Parts(S& site, int readers)
        : site_(site),
          rows_(site.rows()),
          room_(site.half_bytes() / static_cast<std::size_t>(readers) / line_bytes * line_bytes) {
        for (std::size_t i = 0; i < site.tensors(); ++i)
            results_.push_back(site.result(i, rows_[i]));
    }

    std::span<const std::int64_t> rows(std::size_t tensor) const { return rows_[tensor]; }
    /// Adds the next tensor: its parts by reader. `largest`: bytes of the largest part on any rank.
    void contribute(std::vector<std::span<std::byte>> parts, std::size_t largest) {
        contributions_.push_back(std::move(parts));
        largest_.push_back(largest);
    }
    /// Where the part of a reader begins in a half.
    std::size_t begin_for(int reader) const { return static_cast<std::size_t>(reader) * room_; }

    /// Calls take(chunk, half) for each chunk, once all ranks have filled it.
    template <class Take>
    void exchange(const Take& take) const {
        const auto chunks = chunks_of(largest_, room_);
        exchange_chunks(
            site_, chunks.size(),
            [&](std::size_t chunk, std::size_t half) { fill(chunks[chunk], half); },
            [&](std::size_t chunk, std::size_t half) { take(chunks[chunk], half); },
            nothing_to_finish);
    }
    /// Copies each rank's part of the results from that rank's half, where the part begins at
    /// `begin`.
    void take(std::span<const Fragment> chunk, std::size_t half, std::size_t begin) const {
        typename S::Copies copies;
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto tensor = fragment.tensor;
            const auto parts =
                cut_rows(results_[tensor], rows_[tensor], site_.tensor(tensor).row_bytes);
            for (int peer = 0; peer < site_.ranks(); ++peer) {
                const auto part = part_of(parts[static_cast<std::size_t>(peer)], fragment);
                copies.push_back(
                    {part, site_.half(peer, half).subspan(begin + first, part.size())});
            }
        });
        site_.copy(copies);
    }
    /// Reduces the parts that all ranks have for this one into its results.
    void reduce(std::span<const Fragment> chunk, std::size_t half) const {
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            const auto output = part_of(results_[fragment.tensor], fragment);
            std::vector<std::span<const std::byte>> inputs;
            for (int peer = 0; peer < site_.ranks(); ++peer)
                inputs.push_back(
                    site_.half(peer, half).subspan(begin_for(site_.rank()) + first, output.size()));
            site_.reduce(site_.tensor(fragment.tensor).dtype, std::span(&output, 1), inputs);
        });
    }

private:
    template <class Visit>
    static void for_each_fragment(std::span<const Fragment> chunk, const Visit& visit) {
        std::size_t first = 0;
        for (const auto& fragment : chunk) {
            visit(fragment, first);
            first += room_for(fragment);
        }
    }
    void fill(std::span<const Fragment> chunk, std::size_t half) const {
        const auto into = site_.half(site_.rank(), half);
        typename S::Copies copies;
        for_each_fragment(chunk, [&](const Fragment& fragment, std::size_t first) {
            auto begin = first;
            for (const auto& all : contributions_[fragment.tensor]) {
                const auto part = part_of(all, fragment);
                copies.push_back(
                    {into.subspan(begin, part.size()), part, site_.tensor(fragment.tensor).dtype});
                begin += room_;
            }
        });
        site_.copy_prescaled(copies);
    }

    S& site_;
    const std::vector<std::vector<std::int64_t>> rows_;
    const std::size_t room_;                                        ///< for one reader in a half
    std::vector<std::span<std::byte>> results_;                     ///< by tensor
    std::vector<std::vector<std::span<std::byte>>> contributions_;  ///< by tensor and reader
    std::vector<std::size_t> largest_;                              ///< by tensor
};

template <>
inline constexpr auto exchange<OperationKind::all_gather> = []<ArenaSite S>(S& site) {
    Parts parts(site, 1);
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        parts.contribute(
            {tensor.memory},
            static_cast<std::size_t>(std::ranges::max(parts.rows(i))) * tensor.row_bytes);
    }
    parts.exchange(
        [&](std::span<const Fragment> chunk, std::size_t half) { parts.take(chunk, half, 0); });
};

template <>
inline constexpr auto exchange<OperationKind::all_to_all> = []<ArenaSite S>(S& site) {
    Parts parts(site, site.ranks());
    std::vector<std::int64_t> own;
    for (std::size_t i = 0; i < site.tensors(); ++i)
        own.push_back(std::ranges::max(site.tensor(i).splits));
    const auto all = site.gather(own);
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        std::int64_t most = 0;
        for (std::size_t at = i; at < all.size(); at += site.tensors())
            most = std::max(most, all[at]);
        parts.contribute(cut_rows(tensor.memory, tensor.splits, tensor.row_bytes),
                         static_cast<std::size_t>(most) * tensor.row_bytes);
    }
    parts.exchange([&](std::span<const Fragment> chunk, std::size_t half) {
        parts.take(chunk, half, parts.begin_for(site.rank()));
    });
};

template <>
inline constexpr auto exchange<OperationKind::reduce_scatter> = []<ArenaSite S>(S& site) {
    Parts parts(site, site.ranks());
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        const auto shares = reduce_scatter_rows(tensor.rows, tensor.splits, site.ranks());
        parts.contribute(cut_rows(tensor.memory, shares, tensor.row_bytes),
                         static_cast<std::size_t>(std::ranges::max(shares)) * tensor.row_bytes);
    }
    parts.exchange(
        [&](std::span<const Fragment> chunk, std::size_t half) { parts.reduce(chunk, half); });
};

}  // namespace guozhuang::arenas
