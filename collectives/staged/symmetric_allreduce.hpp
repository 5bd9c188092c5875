// Symmetric allreduce: every rank copies its whole bundle to its stage, waits once, and adds up all
// stages for itself. One round is the least latency there is; but since every rank adds up
// everything, it is for small bundles only.
//
// The shared-memory form of the all-to-all broadcast allreduce (R. L. Graham, G. Shipman: MPI
// support for multi-core architectures: optimized shared memory collectives, EuroPVM/MPI 2008).
//
//           rank 0   rank 1   rank 2
//   step 0  0        1        2
//   end     0+1+2    0+1+2    0+1+2
//
// Cost: one round of waiting; n copied in, p n read and added up by every rank.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count; f16 and bf16 are added in f32 and rounded once. The same bits as recursive doubling.
// Needs: stage_scratch_bytes; bundles up to symmetric_limit_bytes.
#pragma once

#include <cstddef>
#include <guozhuang/error.hpp>
#include <span>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/staged/stage_layout.hpp"

namespace guozhuang::staged {

inline std::size_t symmetric_limit_bytes(std::size_t stage_bytes, int ranks) noexcept {
    return StageLayout(stage_bytes, ranks).contribution_bytes();
}

/// args.blocks: one block.
template <PeerMemory P>
void symmetric_allreduce(P& group, const AllreduceArgs& args) {
    const auto stage = group.stage(group.rank());
    const StageLayout layout(stage.size(), group.size());
    const auto bundle = args.blocks.whole(0);
    if (bundle.bytes == 0) return;
    if (bundle.bytes > layout.contribution_bytes())
        throw Error(ErrorCode::internal, "a bundle is too large for the stage");
    const auto terms =
        Scratch(args.scratch)
            .cut_array<std::span<const std::byte>>(static_cast<std::size_t>(group.size()));
    const auto round = group.round();

    const auto out = layout.contributions(stage, round);
    args.blocks.for_each_run(bundle, [&](std::span<const std::byte> run, std::size_t at) {
        group.put(out.subspan(at), run);
    });
    group.publish(bundle.bytes);
    group.await();
    args.blocks.for_each_run(bundle, [&](std::span<std::byte> run, std::size_t at) {
        for (int peer = 0; peer < group.size(); ++peer)
            terms[static_cast<std::size_t>(peer)] =
                layout.contributions(group.stage(peer), round).subspan(at, run.size());
        args.reduce.combine_tree(run, terms);
    });
}

}  // namespace guozhuang::staged

namespace guozhuang {

template <>
inline constexpr auto run_allreduce<Algorithm::symmetric> = [](AllreduceSite auto& site) {
    site.stage(site.cut(1), [&](PeerMemory auto& group, AllreduceArgs args) {
        args.scratch = site.scratch(staged::stage_scratch_bytes(group.size()));
        staged::symmetric_allreduce(group, args);
    });
};

}  // namespace guozhuang
