#pragma once

#include <guozhuang/optimizer.hpp>
#include <string>
#include <vector>

namespace guozhuang {

/// GradientReducer::measure_sharing() of a reducer that has these parameters, options, name and
/// ranks. `has_begun`: a batch.
SharingTimes measure_sharing(const std::vector<Parameter>& parameters,
                             const OptimizerOptions& options, const std::string& name,
                             const ProcessSet& ranks, bool has_begun);

}  // namespace guozhuang
