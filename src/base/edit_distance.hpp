#pragma once

#include <cstddef>
#include <string_view>

namespace guozhuang::base {

/// How many characters must be inserted, removed or changed to turn one text into the other
/// (Levenshtein). The time grows with the product of their lengths.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace guozhuang::base
