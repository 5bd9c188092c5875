#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "device/nccl.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// An NCCL communicator and a thread that watches it. While bundles are in flight the thread asks
/// NCCL ten times a second whether it has failed, and if so fails them. It also ends the
/// communicator, because a thread that ends the job must not call NCCL. One thread at a time is
/// inside NCCL.
class WatchedCommunicator final : public std::enable_shared_from_this<WatchedCommunicator> {
public:
    /// How long to wait for the name of a dead rank: NCCL reports the closed connection first.
    static constexpr std::chrono::seconds until_death_is_known{3};

    /// Throws Error(out_of_memory) without a thread.
    static std::shared_ptr<WatchedCommunicator> make(
        std::unique_ptr<device::NcclCommunicator> communicator);
    WatchedCommunicator(const WatchedCommunicator&) = delete;
    WatchedCommunicator& operator=(const WatchedCommunicator&) = delete;

    /// See NcclCommunicator::group and is_ready. Both throw Error(aborted) once it is released.
    void group(const std::function<void(device::NcclCommunicator&)>& calls);
    bool is_ready();
    /// Whether the communicator itself has failed, rather than a call.
    bool has_failed() noexcept;
    /// Watches until the bundle has ended, which is when its last owner releases it.
    void watch(const std::shared_ptr<engine::StreamBundle>& bundle);
    /// The job is over: has the communicator aborted soon. Makes no NCCL calls. Any thread.
    void release() noexcept;
    /// Ends the communicator, together with the other ranks, and the thread. If this doorbell says
    /// that the job is over, aborts it instead. Returns false if NCCL does not finish the abort in
    /// that time; both are then abandoned.
    bool stop(const base::Doorbell& job, std::chrono::milliseconds most_time_to_abort) noexcept;

private:
    explicit WatchedCommunicator(std::unique_ptr<device::NcclCommunicator> communicator)
        : communicator_(std::move(communicator)) {}

    void run() noexcept;
    void look();
    bool ends_within(std::chrono::milliseconds limit);
    std::shared_ptr<engine::StreamBundle> first_on_its_way();
    bool is_idle();
    void end() noexcept;
    void end_together() GUOZHUANG_REQUIRES(mutex_);
    void require_usable() const GUOZHUANG_REQUIRES(mutex_);

    base::Mutex mutex_;  ///< held inside NCCL
    std::unique_ptr<device::NcclCommunicator> communicator_ GUOZHUANG_GUARDED_BY(mutex_);
    bool is_ready_ GUOZHUANG_GUARDED_BY(mutex_) = false;  ///< at the last check
    base::Mutex bundles_mutex_;
    std::list<std::weak_ptr<engine::StreamBundle>> bundles_ GUOZHUANG_GUARDED_BY(bundles_mutex_);
    base::Doorbell bell_;
    std::atomic<bool> released_{false}, stopped_{false}, has_failed_{false}, has_ended_{false};
    std::thread thread_;
};

}  // namespace guozhuang::backends
