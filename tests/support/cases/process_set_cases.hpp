#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <string>
#include <vector>

#include "support/cases/arena_cases.hpp"
#include "support/cases/error_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/cases/training_cases.hpp"

/// Process sets: some ranks among themselves, while others do something else.
namespace guozhuang::test {

/// Even, odd, without the first, without the last, the ends, the last alone, and everybody: they
/// overlap.
std::vector<std::vector<int>> choices_of_ranks(int size);

std::vector<ProcessSet> create_sets(Session& session);

void facts_of_sets(Session& session, Report& report);

/// Each set alone, one after the other.
void every_operation_in_sets(Session& session, Report& report);

/// Operations of all sets and of the whole job at once, under the same names, each rank in an order
/// of its own.
RankCase random_operations_in_sets(std::uint64_t seed, int rounds);

/// Neighbours share sets of two, all round; each rank uses its two sets, and the whole job, in
/// another order. A long operation blocks the thread that drives it.
RankCase sets_in_different_orders(int rounds, std::int64_t count,
                                  std::optional<Device> device = {});

std::size_t threads_of_process();

/// Contexts, threads and names come again; what was said in an earlier epoch of a context means
/// nothing in a later one.
RankCase sets_come_and_go(int cycles);

void errors_of_creation(Session& session, Report& report);

void errors_in_sets(Session& session, Report& report);

/// Errors of a group name ranks of the job, not group ranks.
void mismatches_in_sets(Session& session, Report& report);

/// An operation that is pending when its set goes: it completes if all have submitted it, else it
/// fails.
void removal_with_pending(Session& session, Report& report);

/// Two halves of the ranks train a model each, with their own averages, samples and metrics.
void training_in_sets(Session& session, Report& report);

/// Sets are in use when the session ends. Even ranks close at once and have not submitted all that
/// odd ones wait for: that completes or says who has shut down, and nobody waits for ever.
void closing_with_sets(Session& session, Report& report);

/// No set of ranks of one host needs messages where they share memory, once they have met; and in
/// an arena none stages.
void sets_share_memory(Session& session, Report& report);

inline const RankCase all_process_set_cases[] = {facts_of_sets,
                                                 sets_share_memory,
                                                 every_operation_in_sets,
                                                 random_operations_in_sets(1, 3),
                                                 sets_in_different_orders(5, 50'000),
                                                 errors_of_creation,
                                                 errors_in_sets,
                                                 mismatches_in_sets,
                                                 removal_with_pending,
                                                 training_in_sets};

}  // namespace guozhuang::test
