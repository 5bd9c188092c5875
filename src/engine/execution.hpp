#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/backend.hpp"
#include "engine/context.hpp"
#include "engine/execution_listener.hpp"
#include "engine/pending.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/log_entry.hpp"
#include "trace/timeline_record.hpp"

/// Turns entries of the log into this rank's bundles, contributions and errors.
namespace guozhuang::engine {

/// Makes a joined rank's contribution to an item that it has not submitted: new tensors, filled
/// with the operation's neutral value. They have the rows that the description demands, or none if
/// each rank chooses its rows. Device tensors get their memory in the bundle's turn (see
/// StreamBundle). Throws std::bad_alloc.
Request identity_input(const protocol::Item& item, Device device);

/// The tensor of an allreduce that any rank can do for itself, given those of all ranks; empty if
/// the request is none.
std::span<const std::byte> contribution_of(const Request& request);

/// Whether this rank has joined, and so contributes neutrally to the entry.
bool contributes_neutrally(const protocol::LogEntry& entry, const Context& context);

/// This rank's request for an item of an entry; null if it has submitted none.
const Pending* pending_of(const protocol::Item& item) noexcept;
/// Takes this rank's requests out of an entry. A rank that has shut down may have submitted none of
/// the operations that fail because of it.
Requests take_requests(protocol::LogEntry& entry);

/// Whether executing the entry takes at most about a millisecond, once the other ranks execute it
/// too. Assumes that they send to this rank as much as it sends.
bool moves_little(const protocol::LogEntry& entry, int ranks);

/// Builds the bundle that a backend runs for an execute entry, from its requests (one at least).
/// The bundle points into them.
Bundle bundle_of(const protocol::LogEntry& entry,
                 std::span<const std::shared_ptr<Pending>> requests,
                 const protocol::GroupRanks& group_ranks, int ranks);

/// Timeline facts of a request or a bundle. `set`: the process set's name; null for the world.
trace::TimelineFacts facts_of(const Request& request,
                              const std::shared_ptr<const std::string>& set);
trace::TimelineFacts facts_of(const Bundle& bundle, const std::shared_ptr<const std::string>& set);

/// The Error of a fail entry.
std::exception_ptr error_of(const protocol::LogEntry& entry,
                            const protocol::GroupRanks& group_ranks);

/// The operations that failed together on this rank; empty if no operation failed.
struct FailedWork {
    std::string_view operation = {};  ///< "allreduce", "send to 1"
    std::string_view tensor = {};     ///< the name of the first one
    std::size_t others = 0;           ///< how many more tensors have names of their own
};
/// `requests` (one at least) outlive it.
FailedWork work_of(std::span<const std::shared_ptr<Pending>> requests) noexcept;

/// Turns a failure of this rank into an Error, the only type that callers get: std::bad_alloc
/// becomes out_of_memory, anything else internal. The text names the work that failed. An Error
/// that already names an operation, or says why the job is over, stays as it is.
std::exception_ptr as_error(const std::exception_ptr& cause, const FailedWork& work,
                            int rank) noexcept;

}  // namespace guozhuang::engine
