#pragma once

#include <optional>
#include <span>

#include "protocol/attendance.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/name.hpp"
#include "protocol/tally.hpp"

namespace guozhuang::protocol {

/// The log entry for a complete round that fails: a rank has shut down or discarded the round, the
/// ranks have submitted different things, or the operation needs a rank that has joined. Empty if
/// the round can be executed. `missing`: the ranks that have not submitted it, ascending.
std::optional<LogEntry> failure_of(const Name& name, const Tally& tally,
                                   std::span<const int> missing, const Attendance& attendance,
                                   const GroupRanks& group_ranks);

}  // namespace guozhuang::protocol
