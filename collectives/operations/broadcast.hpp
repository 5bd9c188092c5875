// Broadcast: copies the root's tensors to all ranks. They are moved as one, whatever their dtypes.
#pragma once

#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/operation_site.hpp"
#include "collectives/hierarchical/hierarchical_all_gather.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/select.hpp"
#include "collectives/tree/tree_broadcast.hpp"

namespace guozhuang {

/// Whether a chain of the hosts delivers `bytes` at least as early as the binomial tree over all
/// ranks, which has fewer hops, but sends up to log2(ranks) copies from the root's host.
/// `window_bytes`: what 10 Gbit/s carry in two hops. The estimate is for a quarter of that speed
/// (docs/decisions/015-hierarchy.md).
constexpr bool are_hosts_chained(std::size_t bytes, int hosts, int ranks,
                                 std::size_t window_bytes) noexcept {
    const auto levels = [](std::size_t others) {
        return static_cast<std::size_t>(std::bit_width(others));
    };
    const auto hop = window_bytes / 8, hops = static_cast<std::size_t>(hosts - 1);
    const auto copies = levels(static_cast<std::size_t>(ranks - 1));
    return hops * hop + bytes <= levels(hops) * hop + copies * bytes;
}

template <>
inline constexpr auto run_operation<OperationKind::broadcast> = []<OperationSite S>(S& site) {
    std::vector<std::span<std::byte>> tensors;
    tensors.reserve(site.tensors());
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        tensors.push_back(site.tensor(i).memory);
        bytes += tensors.back().size();
    }
    auto& blocks = site.blocks();
    const auto segment_bytes = site.policy().segment_bytes;
    auto& wire = site.ring();
    const int root = site.root();
    if (site.stages() || (site.has_levels() && bytes > site.policy().small_bytes &&
                          are_hosts_chained(bytes, site.hosts(), wire.size(), wire.window_bytes())))
        return site.by_levels(bytes, [&](auto& local, const auto& ranks) {
            const int shares = ranks.hosts() > 1 ? ranks.size(ranks.host_of(root)) : 1;
            blocks.assign(tensors, 1, shares, Cut::bundle);
            const tree::BroadcastArgs args{
                .blocks = blocks,
                .scratch = {},
                .segment_bytes = selection::direct_segment_bytes(shares, segment_bytes),
                .root = root};
            hierarchical::AllGather all(local, wire, ranks, args);
            all.run(Scratch(site.scratch(all.scratch_bytes())));
        });
    blocks.assign(tensors, 1, 1);
    tree::broadcast(
        wire, {.blocks = blocks,
               .scratch = site.scratch(tree::broadcast_scratch_bytes(wire, blocks, segment_bytes)),
               .segment_bytes = segment_bytes,
               .root = root});
};

}  // namespace guozhuang
