#include "base/log.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <guozhuang/error.hpp>
#include <iterator>
#include <memory>

#include "base/mutex.hpp"
#include "base/process.hpp"

namespace guozhuang {
namespace {

// The log belongs to the process, as standard error does; no Runtime owns it.
struct Sink {
    std::atomic<LogLevel> level{LogLevel::warning};
    std::atomic<int> rank{-1};  ///< of this process; -1: not known
    base::Mutex mutex;
    std::function<void(LogLevel, std::string_view)> callback GUOZHUANG_GUARDED_BY(mutex);
    std::atomic<bool> callback_exits{false};
};

thread_local bool in_callback = false;

Sink& sink() {
    // Never destroyed: destructors of static objects may log.
    static auto* const instance = new Sink;
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

/// One write per message, so that the lines of several ranks do not mix.
void write_line(LogLevel level, std::string_view message) {
    const int rank = sink().rank.load(std::memory_order_relaxed);
    fmt::memory_buffer line;  // allocates nothing for a short message
    const auto end = std::back_inserter(line);
    rank < 0 ? fmt::format_to(end, "guozhuang") : fmt::format_to(end, "guozhuang[{}]", rank);
    fmt::format_to(end, " {}: {}\n", name_of(level), message);
    std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void set_log_callback(std::function<void(LogLevel, std::string_view)> callback) {
    if (base::is_forked()) return;  // a child of fork() writes to standard error
    if (in_callback)
        throw Error(ErrorCode::invalid_argument,
                    "set_log_callback was called by the log's callback, which it would replace");
    auto& log = sink();
    const base::Lock lock(log.mutex);
    log.callback = std::move(callback);
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

void process_exits() noexcept {
    if (!in_callback) return;
    auto& log = sink();
    log.callback_exits = true;
    log.mutex.is_held();
    log.mutex.unlock();  // others may be waiting for it
}

void log(LogLevel level, std::string_view message) noexcept try {
    auto& log = sink();
    if (level < log.level.load(std::memory_order_relaxed)) return;
    // Another thread may hold the lock and never release it.
    if (in_callback || log.callback_exits || is_forked()) return write_line(level, message);
    const Lock lock(log.mutex);
    if (!log.callback || log.callback_exits) return write_line(level, message);
    in_callback = true;
    const auto end =
        std::unique_ptr<bool, decltype([](bool* flag) { *flag = false; })>(&in_callback);
    log.callback(level, message);
} catch (...) {  // NOLINT(bugprone-empty-catch)
    // A message that cannot be written is lost, which is not fatal.
}

}  // namespace base
}  // namespace guozhuang
