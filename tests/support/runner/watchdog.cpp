#include "support/runner/watchdog.hpp"

#include <algorithm>
#include <cstdio>
#include <unistd.h>
#include <utility>

namespace guozhuang::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int exit_code_of_timeout = 124;  // as timeout(1)
constexpr auto look_every = std::chrono::milliseconds(250);
constexpr double longest_look_s = 1;  // a process that was stopped has not hung meanwhile

}  // namespace

double share_of_a_core() {
    int running = 0;  // at this moment, this thread among them
    // No C++ stream: it would take the global locale, which a test may replace at this moment.
    if (auto* const file = std::fopen("/proc/loadavg", "re")) {
        static_cast<void>(std::fscanf(file, "%*s %*s %*s %d", &running));
        std::fclose(file);
    }
    const auto cores = static_cast<double>(std::max(std::thread::hardware_concurrency(), 1U));
    return std::min(1.0, cores / std::max(running, 1));
}

Watchdog::Watchdog(std::chrono::seconds limit, double (*share)())
    : limit_(limit), share_(share), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void Watchdog::name_process(std::string process) {
    const std::lock_guard lock(mutex_);
    process_ = std::move(process);
}

void Watchdog::start(std::string what) {
    {
        const std::lock_guard lock(mutex_);
        what_ = std::move(what);
        seconds_ = 0;
    }
    changed_.notify_one();
}

void Watchdog::finish() {
    const std::lock_guard lock(mutex_);
    seconds_.reset();
}

void Watchdog::watch() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
        if (!seconds_) {
            changed_.wait(lock);
            continue;
        }
        const auto looked = Clock::now();
        changed_.wait_for(lock, look_every);
        if (!seconds_) continue;
        *seconds_ +=
            share_() *
            std::min(std::chrono::duration<double>(Clock::now() - looked).count(), longest_look_s);
        if (*seconds_ >= static_cast<double>(limit_.count())) {
            std::fprintf(
                stderr,
                "%s: '%s' is not finished after %lld s of an idle machine's time, giving up\n",
                process_.c_str(), what_.c_str(), static_cast<long long>(limit_.count()));
            // No MPI_Abort: the thread that hangs may be inside MPI. mpirun ends the other ranks
            // when one leaves like this.
            _exit(exit_code_of_timeout);
        }
    }
}

}  // namespace guozhuang::test
