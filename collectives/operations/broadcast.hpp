// Broadcast: copies the root's tensors to all ranks. They are moved as one, whatever their dtypes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/operation_site.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/staged/staged_broadcast.hpp"
#include "collectives/tree/tree_broadcast.hpp"

namespace guozhuang {

template <>
inline constexpr auto run_operation<OperationKind::broadcast> = []<OperationSite S>(S& site) {
    std::vector<std::span<std::byte>> tensors;
    tensors.reserve(site.tensors());
    for (std::size_t i = 0; i < site.tensors(); ++i) tensors.push_back(site.tensor(i).memory);
    auto& blocks = site.blocks();
    blocks.assign(tensors, 1, 1);
    const auto segment_bytes = site.policy().segment_bytes;
    if (site.stages())
        return site.stage(blocks.total_bytes(), [&](auto& group) {
            staged::staged_broadcast(group, blocks, site.root(), segment_bytes);
        });
    auto& wire = site.wire();
    tree::broadcast(
        wire, {.blocks = blocks,
               .scratch = site.scratch(tree::broadcast_scratch_bytes(wire, blocks, segment_bytes)),
               .segment_bytes = segment_bytes,
               .root = site.root()});
};

}  // namespace guozhuang
