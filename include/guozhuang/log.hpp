#pragma once

#include <functional>
#include <guozhuang/export.hpp>
#include <string_view>

namespace guozhuang {

/// How much a message matters, ascending. `off` is for GUOZHUANG_LOG_LEVEL: no messages at all.
enum class LogLevel { debug, info, warning, error, off };

/// Receives the library's messages instead of standard error, where they are lines such as
/// "guozhuang[2] warning: ..." (2 is the rank of the process, once it is known); empty restores
/// that. The callback gets the message alone, without level and rank in front, for one process:
/// what it adds is its own matter. It may be called from any thread, one call at a time; what it
/// logs itself goes to standard error, as do the messages of children of fork().
/// GUOZHUANG_LOG_LEVEL says which messages there are.
GUOZHUANG_API void set_log_callback(std::function<void(LogLevel, std::string_view)> callback);

/// Adds a message of the caller's to the library's log. Any thread; never throws.
GUOZHUANG_API void log_message(LogLevel level, std::string_view message) noexcept;

}  // namespace guozhuang
