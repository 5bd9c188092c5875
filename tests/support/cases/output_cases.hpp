#pragma once

#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"

/// Memory that a caller gives for results, correct and wrong.
namespace guozhuang::test {

/// The last rank gives outputs with the wrong number of rows. Only it fails, nothing beyond its
/// outputs is written, and the same operation is right on the others and in the next call.
void misfits(const Among& among, Report& report);

/// Nothing comes from a rank that has joined.
void outputs_beside_joined_rank(Session& session, Report& report);

extern const std::vector<RankCase> all_output_cases;

}  // namespace guozhuang::test
