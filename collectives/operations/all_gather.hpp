// All-gather: every rank receives the rows of all, in the order of ranks. The numbers of rows come
// first, because ranks need not agree on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "collectives/concepts/operation_site.hpp"
#include "collectives/hierarchical/hierarchical_all_gather.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/select.hpp"

namespace guozhuang {

/// blocks[r] receives the rows of rank r; this rank's is filled already.
template <OperationSite S>
void gather(S& site, std::span<const std::span<std::byte>> blocks) {
    const auto around = site.in_ring_order(blocks);
    if (!site.has_levels()) return ring::all_gather(site.ring(), around);
    auto& blocks_around = site.blocks();
    blocks_around.assign_blocks(around);
    site.by_levels(blocks_around.total_bytes(), [&](auto& local, const auto& ranks) {
        const int segments = ranks.hosts() > 1 ? ranks.ranks() : 1;
        const auto segment_bytes =
            selection::direct_segment_bytes(segments, site.policy().segment_bytes);
        const tree::BroadcastArgs args{
            .blocks = blocks_around, .scratch = {}, .segment_bytes = segment_bytes, .root = -1};
        hierarchical::AllGather all(local, site.ring(), ranks, args);
        all.run(Scratch(site.scratch(all.scratch_bytes())));
    });
}

template <>
inline constexpr auto run_operation<OperationKind::all_gather> = []<OperationSite S>(S& site) {
    const auto self = static_cast<std::size_t>(site.wire().rank());
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        std::vector<std::int64_t> rows(static_cast<std::size_t>(site.wire().size()));
        rows[self] = tensor.rows;
        std::vector<std::span<std::byte>> counts;
        for (auto& count : rows) counts.push_back(std::as_writable_bytes(std::span(&count, 1)));
        gather(site, counts);
        const auto blocks = site.result(i, rows);
        if (blocks[self].data() != tensor.memory.data() && !tensor.memory.empty())
            std::memcpy(blocks[self].data(), tensor.memory.data(), tensor.memory.size());
        gather(site, blocks);
    }
};

}  // namespace guozhuang
