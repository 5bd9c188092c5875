#pragma once

#include <guozhuang/optimizer.hpp>
#include <string>
#include <vector>

namespace guozhuang {

/// GradientReducer::measure_sharing() for a reducer with these parameters, options, name and ranks.
/// `has_begun`: whether a batch has begun.
SharingTimes measure_sharing(const std::vector<Parameter>& parameters,
                             const OptimizerOptions& options, const std::string& name,
                             const ProcessSet& ranks, bool has_begun);

}  // namespace guozhuang
