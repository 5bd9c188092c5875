#pragma once

#include <atomic>
#include <exception>
#include <list>
#include <memory>
#include <set>
#include <thread>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "device/device.hpp"

namespace guozhuang::engine {

/// Pending work of a stream, which writes a word of host memory when the work is done.
class Completion {
public:
    virtual ~Completion() = default;
    /// Polled by one thread.
    virtual bool is_reached() noexcept = 0;
    /// Index of the device that does the work; the driver is that of Completions.
    virtual int device() const noexcept = 0;
    /// Called once: when is_reached(), or with the Error of a failed device.
    virtual void complete(const std::exception_ptr& failure) noexcept = 0;
};

/// Completes the work that the streams of one kind of device have finished, on its own thread,
/// which sleeps while nothing is awaited. The thread polls words in host memory, so that no call of
/// the program can hold it up; while nothing ends, it sometimes checks the health of the devices.
/// Thread-safe.
class Completions {
public:
    explicit Completions(std::shared_ptr<device::Driver> driver);
    /// Keeps completions that are still pending for ever.
    ~Completions();
    Completions(const Completions&) = delete;
    Completions& operator=(const Completions&) = delete;

    const std::shared_ptr<device::Driver>& driver() const noexcept { return driver_; }
    void add(std::shared_ptr<Completion> completion);
    /// Waits until `ended()`, looking whenever something completes; false at the deadline.
    template <class Ended>
    bool wait_until(Ended&& ended, base::Deadline deadline) noexcept {
        return base::wait_until(bell_, settings_, ended, deadline) || ended();
    }

private:
    using List = std::list<std::shared_ptr<Completion>>;

    void watch();
    template <class IsSo>
    List take(const IsSo& is_so);
    List take_unhealthy(std::exception_ptr& failure);
    std::set<int> awaited_devices();
    bool is_empty();

    const std::shared_ptr<device::Driver> driver_;
    const base::WaitSettings settings_ = base::settings_for_words({});
    base::Doorbell bell_;
    std::atomic<bool> stopped_{false};
    base::Mutex mutex_;
    List awaited_ GUOZHUANG_GUARDED_BY(mutex_);
    std::thread thread_ GUOZHUANG_GUARDED_BY(mutex_);  ///< started when something is awaited
};

}  // namespace guozhuang::engine
