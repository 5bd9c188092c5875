#pragma once

#include <span>
#include <string_view>

#include "baselines/baseline.hpp"

namespace guozhuang::perf {

/// The main() of gz-perf, under this name and with these baselines to choose from. Returns the exit
/// code.
int run_program(std::string_view name, std::span<const BaselineKind> baselines, int argc,
                char** argv);

}  // namespace guozhuang::perf
