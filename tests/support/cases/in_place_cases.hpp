#pragma once

#include "support/cases/operation_cases.hpp"

/// Results in the memory of their own input, or the other way round.
namespace guozhuang::test {

/// all_gather from this rank's block of the output; reduce_scatter into this rank's block of the
/// input, in equal and in given parts. Small and large, of even and uneven rows, with scales.
void results_in_place(const Among& among, Report& report);

/// Every other overlap is refused: at once if this rank can see it, otherwise by wait(), on this
/// rank alone.
void misplaced_blocks(const Among& among, Report& report);

extern const std::vector<RankCase> all_in_place_cases;

}  // namespace guozhuang::test
