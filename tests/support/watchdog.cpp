#include "support/watchdog.hpp"

#include <cstdio>
#include <unistd.h>
#include <utility>

namespace guozhuang::test {
namespace {

constexpr int exit_code_of_timeout = 124;  // as timeout(1)

}  // namespace

Watchdog::Watchdog(std::chrono::seconds limit) : limit_(limit), thread_([this] { watch(); }) {}

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
        deadline_ = Clock::now() + limit_;
    }
    changed_.notify_one();
}

void Watchdog::finish() {
    const std::lock_guard lock(mutex_);
    deadline_ = Clock::time_point::max();
}

void Watchdog::watch() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
        if (deadline_ == Clock::time_point::max()) {
            changed_.wait(lock);
        } else if (changed_.wait_until(lock, deadline_) == std::cv_status::timeout && Clock::now() >= deadline_) {
            std::fprintf(stderr, "%s: '%s' is not finished after %lld s, giving up\n", process_.c_str(), what_.c_str(),
                         static_cast<long long>(limit_.count()));
            // No MPI_Abort: the thread that hangs may be inside MPI. mpirun ends the other ranks when one leaves like this.
            _exit(exit_code_of_timeout);
        }
    }
}

}  // namespace guozhuang::test
