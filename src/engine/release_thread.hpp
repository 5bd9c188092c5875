#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/wait.hpp"
#include "engine/pending.hpp"

namespace guozhuang::engine {

/// Lets go of what operations on devices have kept, and completes them after that. The memory may
/// be freed by that, and whoever frees memory of a device may wait for all its work: for bundles
/// that other ranks launch only when this rank's engines go on. So it is no thread that drives.
/// Thread-safe.
class ReleaseThread {
public:
    /// `complete` is called on the thread, for each operation. Throws Error(out_of_memory).
    explicit ReleaseThread(std::function<void(Pending&)> complete);
    ~ReleaseThread() { stop(); }
    ReleaseThread(const ReleaseThread&) = delete;
    ReleaseThread& operator=(const ReleaseThread&) = delete;

    void let_go(std::shared_ptr<Owners> owners) noexcept;
    void complete(std::shared_ptr<Pending> pending) noexcept;
    /// Throws Error(invalid_argument) if the calling thread is that of one of these, and so cannot
    /// wait for the operation, since it is on a device: it may have to complete it.
    static void check_wait(const Request& request);
    /// Returns when all has been let go and the thread has ended. What still comes is completed by
    /// who brings it, and what is to be let go then is kept as long as this.
    void stop() noexcept;

private:
    void run() noexcept;
    bool complete_ended() noexcept;

    const std::function<void(Pending&)> complete_;
    base::Doorbell bell_;
    ReleaseQueue released_;
    EndedQueue ended_;
    std::atomic<bool> stopped_{false};
    std::thread thread_;
};

}  // namespace guozhuang::engine
