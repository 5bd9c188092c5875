#include "base/log.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace guozhuang {
namespace {

// A log belongs to the process, as standard error does: the one thing here that no Runtime owns.
struct Sink {
    std::atomic<LogLevel> level{LogLevel::warning};
    std::atomic<int> rank{-1};  ///< of this process; -1: not known
    std::mutex mutex;
    std::function<void(LogLevel, std::string_view)> callback;
};

Sink& sink() {
    static auto* const instance = new Sink;  // never destroyed: messages may come as late as static destruction
    return *instance;
}

std::string_view name_of(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::debug: return "debug";
        case LogLevel::info: return "info";
        case LogLevel::warning: return "warning";
        case LogLevel::error: return "error";
        case LogLevel::off: break;
    }
    return "off";
}

}  // namespace

void set_log_callback(std::function<void(LogLevel, std::string_view)> callback) {
    const std::lock_guard lock(sink().mutex);
    sink().callback = std::move(callback);
}

void log_message(LogLevel level, std::string_view message) noexcept {
    base::log(level, message);
}

namespace base {

void set_log_level(LogLevel level) noexcept {
    sink().level.store(level, std::memory_order_relaxed);
}

void set_log_rank(int rank) noexcept {
    sink().rank.store(rank, std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view message) noexcept try {
    if (level < sink().level.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(sink().mutex);
    if (sink().callback) {
        sink().callback(level, message);
    } else {
        // One write per message, so that the lines of several ranks do not mix.
        const int rank = sink().rank.load(std::memory_order_relaxed);
        const auto line = fmt::format("guozhuang{} {}: {}\n", rank < 0 ? "" : fmt::format("[{}]", rank), name_of(level), message);
        std::fwrite(line.data(), 1, line.size(), stderr);
    }
} catch (...) {  // NOLINT(bugprone-empty-catch): a message that cannot be written is lost, not fatal
}

}  // namespace base
}  // namespace guozhuang
