// Barrier: the log has made sure that all ranks are there. Where they share memory, this makes them
// leave together.
#pragma once

#include "collectives/concepts/operation_site.hpp"
#include "collectives/staged/staged_rounds.hpp"

namespace guozhuang {

template <>
inline constexpr auto run_operation<OperationKind::barrier> = []<OperationSite S>(S& site) {
    if (site.stages()) site.stage(0, [](auto& group) { staged::staged_barrier(group); });
};

}  // namespace guozhuang
