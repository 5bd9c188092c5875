#pragma once

#include <map>
#include <string>
#include <string_view>

namespace guozhuang::base {

/// What suits a machine: variables and their values, as `gz-perf tune` writes them, one a line.
/// Lines that begin with # are comments.
using Tuning = std::map<std::string, std::string, std::less<>>;

/// Throws Error(configuration), with the line's number, for a line that assigns nothing, for a
/// variable that is not among the tuned ones, and for a second value of one. Does not check the
/// values.
Tuning parse_tuning(std::string_view text, std::string_view file);

/// Reads a file likewise. Throws Error(configuration) if it cannot be read.
Tuning read_tuning(const std::string& file);

}  // namespace guozhuang::base
