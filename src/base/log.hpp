#pragma once

#include <fmt/format.h>

#include <guozhuang/log.hpp>
#include <string_view>
#include <utility>

namespace guozhuang::base {

/// Writes a message to the callback of set_log_callback, or to standard error as "guozhuang[2]
/// warning: ..." with this process's rank, once it is known. Any thread. Never throws.
void log(LogLevel level, std::string_view message) noexcept;

/// The same with a format. If there is no memory to format the message, it is lost. Never throws.
template <class... Args>
    requires(sizeof...(Args) > 0)
void log(LogLevel level, fmt::format_string<Args...> message, Args&&... args) noexcept try {
    log(level, std::string_view(fmt::format(message, std::forward<Args>(args)...)));
} catch (...) {  // NOLINT(bugprone-empty-catch)
}

inline void log_debug(std::string_view message) noexcept {
    log(LogLevel::debug, message);
}
inline void log_info(std::string_view message) noexcept {
    log(LogLevel::info, message);
}
inline void log_warning(std::string_view message) noexcept {
    log(LogLevel::warning, message);
}
inline void log_error(std::string_view message) noexcept {
    log(LogLevel::error, message);
}

/// Sets the rank at the beginning of lines on standard error. Not called if ranks are threads: they
/// share the log, which then names no rank.
void set_log_rank(int rank) noexcept;

/// Messages below the level are dropped. Warning until set from the configuration.
void set_log_level(LogLevel level) noexcept;

/// Called after exit() has been called. If the log callback called exit(), it never returns, and
/// messages go to standard error from now on.
void process_exits() noexcept;

}  // namespace guozhuang::base
