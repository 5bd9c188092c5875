#pragma once

#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"

/// Memory that a caller gives for results, and gives wrongly.
namespace guozhuang::test {

/// Errors that the caller alone can see are thrown at once, on it alone; then all ranks gather
/// properly.
void refused_outputs(Session& session, Report& report);

/// The last rank gives outputs of other rows than come. It alone fails, nothing beyond its outputs
/// is written, and the same operation is right on the others and in the next call.
void misfits(const Among& among, Report& report);

/// A result in an output is read as any other.
void results_in_outputs(Session& session, Report& report);

/// Rank 0's arena goes before the last rank has submitted, with outputs or inputs in it.
void outputs_gone_in_flight(Session& session, Report& report);

/// Nothing comes from a rank that has joined.
void outputs_beside_joined_rank(Session& session, Report& report);

inline const RankCase all_output_cases[] = {refused_outputs, misfits, results_in_outputs,
                                            outputs_gone_in_flight, outputs_beside_joined_rank};

}  // namespace guozhuang::test
