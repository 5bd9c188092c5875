#pragma once

#include <cstddef>
#include <string>

#include "api/check.hpp"
#include "api/requests.hpp"

namespace guozhuang::api {

/// "output"; of a group "output [2]".
std::string name_of_output(const engine::Call& call, std::size_t i);

/// Throws Error(invalid_argument) for outputs that, as far as this rank knows, do not fit the
/// results of the call's tensors.
void check_outputs(const SetRuntime& set, const engine::Call& call, const Check& check);

}  // namespace guozhuang::api
