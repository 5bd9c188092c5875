#pragma once

#include <map>
#include <string>
#include <string_view>

namespace guozhuang::base {

/// What a machine was found to want: variables and their values, as `gz-perf tune` writes them, a
/// line each; lines that begin with # say why.
using Tuning = std::map<std::string, std::string, std::less<>>;

/// Throws Error(configuration), with the number of the line, for a variable that is none of those
/// which are tuned, a second value for one, or what is no assignment. What the values mean is for
/// others to see.
Tuning parse_tuning(std::string_view text, std::string_view file);

/// The same of a file. Throws Error(configuration) if it cannot be read.
Tuning read_tuning(const std::string& file);

}  // namespace guozhuang::base
