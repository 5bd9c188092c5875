#pragma once

#include <fmt/format.h>

#include <guozhuang/log.hpp>
#include <string_view>
#include <utility>

namespace guozhuang::base {

/// Writes a message to the callback of set_log_callback, or to standard error as "guozhuang[2]
/// warning: ..." with this process's rank, once it is known. Any thread. Never throws.
void log(LogLevel level, std::string_view message) noexcept;

/// The same, and without memory to put the message together it is lost: for places that must not
/// throw.
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

/// The rank that lines on standard error begin with: this process's. Ranks that are threads have
/// one log, which names none.
void set_log_rank(int rank) noexcept;

/// Messages below the level are dropped. Warning until set from the configuration.
void set_log_level(LogLevel level) noexcept;

/// exit() has been called. Where it was called in the callback, which will never return, messages
/// go to standard error from now on.
void process_exits() noexcept;

}  // namespace guozhuang::base
