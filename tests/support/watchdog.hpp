#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace guozhuang::test {

/// Ends the process with a line of text when what was started is not finished in time. Any thread.
class Watchdog {
public:
    explicit Watchdog(std::chrono::seconds limit);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    void name_process(std::string process);
    void start(std::string what);
    void finish();

private:
    using Clock = std::chrono::steady_clock;
    void watch();

    const std::chrono::seconds limit_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string process_ = "test";
    std::string what_;
    Clock::time_point deadline_ = Clock::time_point::max();
    bool closed_ = false;
    std::thread thread_;
};

}  // namespace guozhuang::test
