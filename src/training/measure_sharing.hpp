#pragma once

#include <guozhuang/optimizer.hpp>
#include <string>
#include <vector>

namespace guozhuang {

/// GradientReducer::measure_sharing() of a reducer that has these parameters, options, name and
/// ranks.
SharingTimes measure_sharing(const std::vector<Parameter>& parameters, OptimizerOptions options,
                             const std::string& name, const ProcessSet& ranks);

}  // namespace guozhuang
