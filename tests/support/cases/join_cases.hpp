#pragma once

#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <string>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/cases/training_cases.hpp"

/// Ranks that run out of data at different times.
namespace guozhuang::test {

/// Each rank makes one step more than the one before it, repeatedly, under the same names; then all
/// go on together, unnamed and named.
void uneven_steps(Session& session, Report& report);

/// Tensors of a device that a rank which has joined may never have used.
void uneven_steps_on_a_device(Session& session, Report& report);

/// Operations submitted before joining count. After that a rank can submit nothing but messages
/// until all have joined.
void submissions_around_a_join(Session& session, Report& report);

/// A parameter per rank and batch: the optimizer averages over those that still have batches, and
/// the last rank's parameters are the newest.
void training_with_uneven_batches(Session& session, Report& report);

/// The helpers of a training loop count the ranks that are still in it.
void helpers_without_some(Session& session, Report& report);

extern const std::vector<RankCase> all_join_cases;

}  // namespace guozhuang::test
