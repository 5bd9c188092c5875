#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/backend.hpp"
#include "engine/pending.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "trace/timeline_record.hpp"

/// What an entry of the log means on this rank.
namespace guozhuang::engine {

/// What a rank that has joined moves in place of the entry's request that it has not submitted:
/// memory of its own, filled with what changes nobody's result, in as many rows as it must have:
/// none, where that is the rank's choice.
Request neutral_contribution(const protocol::LogEntry& entry, std::size_t item);

/// What a backend runs: the requests of an execute entry, one at least, fused. It points into them.
Bundle bundle_of(const protocol::LogEntry& entry,
                 std::span<const std::shared_ptr<Pending>> requests,
                 const protocol::GroupRanks& group_ranks, int ranks);

/// What the timeline says of them. `set`: the name of the process set; null: the world.
trace::TimelineFacts facts_of(const Request& request,
                              const std::shared_ptr<const std::string>& set);
trace::TimelineFacts facts_of(const Bundle& bundle, const std::shared_ptr<const std::string>& set);

/// The Error of a fail entry.
std::exception_ptr error_of(const protocol::LogEntry& entry,
                            const protocol::GroupRanks& group_ranks);

/// What a rank's own failure is to its callers, who know one type: an Error as it is, and one that
/// says so of a lack of memory or of anything else.
std::exception_ptr as_error(const std::exception_ptr& cause, std::string_view operation,
                            int rank) noexcept;

}  // namespace guozhuang::engine
