#pragma once

#include <cstddef>
#include <string>

#include "api/check.hpp"
#include "api/requests.hpp"

namespace guozhuang::api {

/// "output"; of a group "output [2]".
std::string name_of_output(const engine::Call& call, std::size_t i);

/// Throws Error(invalid_argument) for outputs that cannot be those of the call's tensors, as far as
/// this rank knows.
void check_outputs(const SetRuntime& set, const engine::Call& call, const Check& check);

}  // namespace guozhuang::api
