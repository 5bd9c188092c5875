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

/// Process sets: some ranks work among themselves while others do something else.
namespace guozhuang::test {

/// Each set alone, one after the other.
void every_operation_in_sets(Session& session, Report& report);

/// Operations of all sets and of the whole job at once, under the same names, in a different order
/// on each rank.
RankCase random_operations_in_sets(std::uint64_t seed, int rounds);

/// Neighbours share sets of two, all round; each rank uses its two sets, and the whole job, in
/// another order. A long operation blocks the thread that drives it.
RankCase sets_in_different_orders(int rounds, std::int64_t count,
                                  std::optional<Device> device = {});

std::size_t threads_of_process();

/// Contexts, threads and names come again; what was said in an earlier epoch of a context means
/// nothing in a later one.
RankCase sets_come_and_go(int cycles);

/// Sets are in use when the session ends. Even ranks close at once and have not submitted all that
/// odd ones wait for: that completes or says who has shut down, and nobody waits for ever.
void closing_with_sets(Session& session, Report& report);

extern const std::vector<RankCase> all_process_set_cases;

}  // namespace guozhuang::test
