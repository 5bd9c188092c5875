#pragma once

#include "support/cases/operation_cases.hpp"

/// Results that go into memory of their own input, or the other way round.
namespace guozhuang::test {

/// all_gather from this rank's block of the output; reduce_scatter into this rank's block of the
/// input, in equal and in given parts. Small and large, of even and uneven rows, with scales.
void results_in_place(const Among& among, Report& report);

/// Every other overlap is refused: at once where this rank knows, else by wait(), on it alone.
void misplaced_blocks(const Among& among, Report& report);

/// Splits that do not fit their tensor or differ between ranks are errors, which name them.
void refused_splits(Session& session, Report& report);

/// A rank that has joined adds nothing to parts that others are given.
void splits_beside_joined_rank(Session& session, Report& report);

inline const RankCase all_in_place_cases[] = {results_in_place, misplaced_blocks, refused_splits,
                                              splits_beside_joined_rank};

}  // namespace guozhuang::test
