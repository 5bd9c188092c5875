#pragma once

#include <string>
#include <vector>

#include "timeline_trace.hpp"

namespace timeline {

/// Where the time goes, for a terminal: for each kind of slice and each rank how many there were
/// and how long they took; then how often each rank was the last to submit what all have submitted.
/// The traces must be aligned.
std::string summary(const std::vector<Trace>& traces);

}  // namespace timeline
