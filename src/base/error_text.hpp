#pragma once

#include <exception>
#include <guozhuang/error.hpp>
#include <optional>
#include <span>
#include <string>

namespace guozhuang::base {

/// "std::runtime_error: no such file data.bin"; of our own errors the message alone. "out of
/// memory", of std::bad_alloc or if there is none for the text.
std::string describe(const std::exception_ptr& exception);

/// How messages name ranks: "rank 2", "ranks 0,1,3".
std::string list_ranks(std::span<const int> ranks);

/// Of our own errors; empty of others.
std::optional<ErrorCode> code_of(const std::exception_ptr& exception) noexcept;

}  // namespace guozhuang::base
