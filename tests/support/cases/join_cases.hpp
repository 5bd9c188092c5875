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

/// The ranks of a job that still have data in a step, if the first has one step, the second two,
/// and so on.
std::vector<int> active_in(int step, int ranks);

/// Adasum has an order among all ranks, in which nothing stands for those that have joined.
std::vector<Tensor> contributions_of(const std::vector<int>& active, const std::string& name,
                                     const Reduce& reduce);

std::vector<Reduce> all_reductions(const Shape& shape);

/// Reductions in a step, fused as it comes: what the active ranks have contributed, and an average
/// divides by how many they are.
void reduce_without_some(Session& session, Report& report, const std::string& step,
                         const std::vector<int>& active, Device device);

void scatter_without_some(Session& session, Report& report, const std::string& step,
                          const std::vector<int>& active);

/// Operations without joined ranks: an all_gather without their rows, a broadcast from a root that
/// has not joined, a barrier and a group.
void move_without_some(Session& session, Report& report, const std::string& step,
                       const std::vector<int>& active);

/// One step more on each rank than on the one before it, again and again, under the same names;
/// then all go on together, unnamed and named.
void uneven_steps(Session& session, Report& report);

/// Tensors of a device that a rank which has joined may never have used.
void uneven_steps_on_a_device(Session& session, Report& report);

/// Operations submitted before joining count. After that a rank can submit nothing but messages
/// until all have joined.
void submissions_around_a_join(Session& session, Report& report);

/// Rank 0 has joined, and cannot be done without.
void joined_and_needed(Session& session, Report& report);

/// Joining in one set says nothing about others.
void joining_in_sets(Session& session, Report& report);

/// A parameter per rank and batch: the optimizer averages over those that still have batches, and
/// the last rank's parameters are the newest.
void training_with_uneven_batches(Session& session, Report& report);

/// The helpers of a training loop go by those that are still in it.
void helpers_without_some(Session& session, Report& report);

inline const RankCase all_join_cases[] = {
    uneven_steps,    submissions_around_a_join,    joined_and_needed,
    joining_in_sets, training_with_uneven_batches, helpers_without_some};

}  // namespace guozhuang::test
