#pragma once

#include <optional>
#include <span>

#include "protocol/attendance.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/name.hpp"
#include "protocol/tally.hpp"

namespace guozhuang::protocol {

/// Why a round fails for which nobody is waited any more, as the log tells all ranks: somebody has
/// shut down or discarded it, the ranks have submitted different things, or those that have joined
/// are needed. Empty if it is to be executed. `missing`: the ranks that have not submitted it,
/// ascending.
std::optional<LogEntry> failure_of(const Name& name, const Tally& tally,
                                   std::span<const int> missing, const Attendance& attendance,
                                   const GroupRanks& group_ranks);

}  // namespace guozhuang::protocol
