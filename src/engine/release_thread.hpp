#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/wait.hpp"
#include "engine/pending.hpp"

namespace guozhuang::engine {

/// Releases the owners that operations on devices have kept, then completes the operations. This
/// may free device memory, which may wait for all work of the device: even for bundles that cannot
/// end until this rank's engines go on. So no thread that drives may do it. Thread-safe.
class ReleaseThread {
public:
    /// `complete` is called on the thread, for each operation. Throws Error(out_of_memory).
    explicit ReleaseThread(std::function<void(Pending&)> complete);
    ~ReleaseThread() { stop(); }
    ReleaseThread(const ReleaseThread&) = delete;
    ReleaseThread& operator=(const ReleaseThread&) = delete;

    void let_go(std::shared_ptr<Owners> owners) noexcept;
    void complete(std::shared_ptr<Pending> pending) noexcept;
    /// Throws Error(invalid_argument) if the calling thread belongs to a ReleaseThread and the
    /// operation is on a device: the thread may have to complete it, so it cannot wait for it.
    static void check_wait(const Request& request);
    /// Releases all owners, completes all operations and ends the thread. After that complete()
    /// runs on its caller's thread, and owners passed to let_go() are kept until the next
    /// complete(), or until this object is destroyed.
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
