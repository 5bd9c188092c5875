// All-to-all: every rank sends each rank some of its rows, and receives rows in the order of ranks.
// The ranks first tell each other how many.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/concepts/operation_site.hpp"
#include "collectives/layout/rows.hpp"
#include "collectives/pairwise/pairwise_all_to_all.hpp"
#include "collectives/staged/staged_all_to_all.hpp"

namespace guozhuang {

/// given[r] goes to rank r, taken[r] comes from there. `longest_bytes`: the most that any rank
/// gives another.
template <OperationSite S>
void exchange(S& site, std::span<const std::span<const std::byte>> given,
              std::span<const std::span<std::byte>> taken, std::size_t longest_bytes) {
    if (!site.stages()) return pairwise::all_to_all(site.wire(), given, taken);
    site.stage(longest_bytes * taken.size(), [&](auto& group) {
        staged::staged_all_to_all(group, given, taken, longest_bytes, site.policy().segment_bytes);
    });
}

/// The rows that each rank gives this one, and the most rows that it gives any rank.
struct RowsGiven {
    std::vector<std::int64_t> to_this_rank, most;
};

template <OperationSite S>
RowsGiven exchange_splits(S& site, std::span<const std::int64_t> splits) {
    struct Split {
        std::int64_t rows = 0, most = 0;
    };
    const auto most = std::ranges::max(splits);
    std::vector<Split> told, heard(splits.size());
    for (const auto split : splits) told.push_back({split, most});
    std::vector<std::span<const std::byte>> given;
    std::vector<std::span<std::byte>> taken;
    for (auto& split : told) given.push_back(std::as_bytes(std::span(&split, 1)));
    for (auto& split : heard) taken.push_back(std::as_writable_bytes(std::span(&split, 1)));
    exchange(site, given, taken, sizeof(Split));
    RowsGiven rows;
    for (const auto& split : heard) {
        rows.to_this_rank.push_back(split.rows);
        rows.most.push_back(split.most);
    }
    return rows;
}

template <>
inline constexpr auto run_operation<OperationKind::all_to_all> = []<OperationSite S>(S& site) {
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        const auto rows = exchange_splits(site, tensor.splits);
        site.require_possible(i, rows.most);
        const auto taken = site.result(i, rows.to_this_rank);
        const std::span<const std::byte> given = tensor.memory;
        exchange(site, cut_rows(given, tensor.splits, tensor.row_bytes), taken,
                 static_cast<std::size_t>(std::ranges::max(rows.most)) * tensor.row_bytes);
    }
};

}  // namespace guozhuang
