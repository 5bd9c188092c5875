// Barrier: the log has made sure that all ranks are there; this makes them leave together.
#pragma once

#include "collectives/concepts/operation_site.hpp"
#include "collectives/staged/staged_rounds.hpp"
#include "collectives/tree/tree_barrier.hpp"

namespace guozhuang {

template <>
inline constexpr auto run_operation<OperationKind::barrier> = []<OperationSite S>(S& site) {
    if (site.stages()) return site.stage(0, [](auto& group) { staged::staged_barrier(group); });
    tree::barrier(site.wire(), site.scratch(tree::barrier_scratch_bytes));
};

}  // namespace guozhuang
