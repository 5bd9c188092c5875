#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace guozhuang::test {

/// The share of a core that each thread that wants to run gets on this machine at present, at most
/// 1.
double share_of_a_core();

/// Ends the process with a line of text if started work is not finished in time. Time passes as
/// slowly as the machine is loaded: a second in which a thread would get a hundredth of a core
/// counts as a hundredth. Any thread.
class Watchdog {
public:
    explicit Watchdog(std::chrono::seconds limit, double (*share)() = share_of_a_core);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    void name_process(std::string process);
    void start(std::string what);
    void finish();

private:
    void watch();

    const std::chrono::seconds limit_;
    double (*const share_)();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string process_ = "test";
    std::string what_;
    std::optional<double> seconds_;  ///< since what is running was started
    bool closed_ = false;
    std::thread thread_;
};

}  // namespace guozhuang::test
