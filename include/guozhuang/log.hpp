#pragma once

#include <functional>
#include <guozhuang/export.hpp>
#include <string_view>

namespace guozhuang {

/// How much a message matters, ascending. `off` is for GUOZHUANG_LOG_LEVEL: no message is logged.
enum class LogLevel { debug, info, warning, error, off };

/// Receives the library's messages; empty: they go to standard error again, as lines such as
/// "guozhuang[2] warning: ..." (2 is the process's rank, once it is known). The callback gets the
/// message without level and rank before it. It may be called on any thread, one call at a time.
/// Messages that the callback itself causes go to standard error, as do those of children of
/// fork(). GUOZHUANG_LOG_LEVEL selects the messages. When this returns, the previous callback is
/// not running and will not be called again. Any thread; a callback that calls it gets
/// Error(invalid_argument).
GUOZHUANG_API void set_log_callback(std::function<void(LogLevel, std::string_view)> callback);

/// Logs the caller's message among the library's. Any thread; never throws.
GUOZHUANG_API void log_message(LogLevel level, std::string_view message) noexcept;

}  // namespace guozhuang
