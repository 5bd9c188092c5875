#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/cases/operation_cases.hpp"

/// Handles, and operations that are in flight at the same time.
namespace guozhuang::test {

/// Rank 0 tells the others to go on, so it knows that they have not done so before.
void release_others(Session& session);

void handle_life(Session& session, Report& report);

/// A barrier completes although an operation submitted before it cannot complete yet.
void barrier_beside_pending(Session& session, Report& report);

/// The owner is released when the operation is complete, whatever happens to the handle.
void keep_alive_case(Session& session, Report& report);

/// Several threads of a rank submit and wait at once, named operations and messages.
void many_threads(Session& session, Report& report);

/// Operations without names match by the order in which a rank calls those of one kind.
void unnamed_operations(Session& session, Report& report);

/// Everything from each rank in flight at once, in opposite orders.
void many_in_flight(Session& session, Report& report);

}  // namespace guozhuang::test
