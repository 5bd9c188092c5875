#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/attendance.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/tally.hpp"

namespace guozhuang::protocol {

/// One round of one name for which nobody is waited any more: every rank has submitted it, has
/// joined or has shut down.
struct CompleteRound {
    std::string name;
    Tally tally;
    std::vector<int> missing;  ///< ranks that have not submitted it, ascending
};

/// Why the round fails, as the log tells all ranks: somebody has shut down or discarded it, the
/// ranks have submitted different things, or those that have joined are needed. Empty if it is to
/// be executed.
std::optional<LogEntry> failure_of(const CompleteRound& round, const Attendance& attendance,
                                   const GroupRanks& group_ranks);

}  // namespace guozhuang::protocol
