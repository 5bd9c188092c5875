#pragma once

#include <exception>
#include <guozhuang/error.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace guozhuang::base {

/// The text of an exception: the message alone for an Error, otherwise with its type, as in
/// "std::runtime_error: no such file data.bin". "out of memory" for std::bad_alloc, or if there is
/// no memory for the text.
std::string describe(const std::exception_ptr& exception);

/// Quotes a name for messages: whole, or its first 200 bytes and its length, as in "'layer3...'
/// (70000 bytes)". Does not split UTF-8 characters.
std::string quote(std::string_view name);

/// Names ranks for messages: "rank 2", "ranks 0,1,3"; more than twenty by their first
/// twenty runs, "ranks 0-16,18-63".
std::string list_ranks(std::span<const int> ranks);

/// The code of an Error; empty for other exceptions.
std::optional<ErrorCode> code_of(const std::exception_ptr& exception) noexcept;

}  // namespace guozhuang::base
