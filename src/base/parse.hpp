#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace guozhuang::base {

/// Parses the whole text as a number, whatever the locale. Empty if the text is not a number, or if
/// the number does not fit. Allocates nothing.
template <class Number>
std::optional<Number> parse_number(std::string_view text) noexcept {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

/// Sets `choice`, a bool or an enumerator, to the index of `text` among the words. False if it is
/// none of them.
template <class Choice, std::size_t n>
bool parse_choice(std::string_view text, const std::array<std::string_view, n>& words,
                  Choice& choice) noexcept {
    const auto found = std::ranges::find(words, text);
    if (found == words.end()) return false;
    choice = static_cast<Choice>(found - words.begin());
    return true;
}

}  // namespace guozhuang::base
