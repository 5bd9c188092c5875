#pragma once

#include <cstddef>
#include <string_view>

namespace guozhuang::base {

/// How many characters must be put in, left out or changed to make one text of the other
/// (Levenshtein). Takes the product of their lengths.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace guozhuang::base
