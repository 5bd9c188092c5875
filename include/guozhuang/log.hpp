#pragma once

#include <functional>
#include <guozhuang/export.hpp>
#include <string_view>

namespace guozhuang {

enum class LogLevel { debug, info, warning, error, off };

/// Receives the library's messages instead of standard error; empty restores that. The callback may be called from any thread, one at a time; it must not log itself.
/// GUOZHUANG_LOG_LEVEL says which messages there are.
GUOZHUANG_API void set_log_callback(std::function<void(LogLevel, std::string_view)> callback);

/// Adds a message of the caller's to the library's log. Any thread; never throws.
GUOZHUANG_API void log_message(LogLevel level, std::string_view message) noexcept;

}  // namespace guozhuang
