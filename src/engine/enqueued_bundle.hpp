#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "engine/backend.hpp"
#include "engine/context.hpp"
#include "engine/execution_listener.hpp"

namespace guozhuang::engine {

/// A bundle that a stream moves, with the operations that it is for.
class EnqueuedBundle final : public StreamBundle {
public:
    /// `bundle` points into the requests. The listener keeps the context alive.
    EnqueuedBundle(Bundle bundle, Requests requests, const Context& context,
                   std::shared_ptr<ExecutionListener> listener);

    const Bundle& bundle() const noexcept override { return bundle_; }
    const Requests& requests() const noexcept { return requests_; }
    bool attempt(const std::function<void()>& work) noexcept override;
    void make_contributions(const std::shared_ptr<device::Driver>& driver,
                            device::Stream& stream) override;
    /// Enqueueing has failed: makes the bundle fail when the stream reaches its end. Called by the
    /// thread that enqueues, before it enqueues the end.
    void refuse(std::exception_ptr failure) noexcept;
    /// Ends the bundle, once: its stream has finished it, or its device has failed with this error.
    /// Another thread releases the owners that the bundle has kept, and the bundle itself.
    static void end(std::shared_ptr<EnqueuedBundle> bundle,
                    const std::exception_ptr& failure) noexcept;
    /// Whether the job is over for this rank, and why.
    bool is_job_over() const noexcept { return base::is_aborted(context_.doorbell); }
    std::exception_ptr end_of_job() const noexcept;

private:
    void fail(const std::exception_ptr& cause) noexcept;
    void keep(std::shared_ptr<void> owner);
    std::shared_ptr<Owners> take_kept() noexcept;

    const Bundle bundle_;
    const Requests requests_;
    Requests to_end_;  ///< the same; end() takes them, while fail() may be running
    std::exception_ptr refusal_;
    std::atomic<bool> is_refused_{false};
    base::Mutex mutex_;
    /// Owners of memory that the requests and a joined rank's contributions use. An operation that
    /// fails before the stream is done releases its own reference while the stream may still use
    /// the memory. Null when the bundle has ended.
    std::shared_ptr<Owners> keep_alive_ GUOZHUANG_GUARDED_BY(mutex_) = std::make_shared<Owners>();
    std::shared_ptr<Owners> self_ = std::make_shared<Owners>();  ///< the bundle, when it has ended
    const Context& context_;
    const std::shared_ptr<ExecutionListener> listener_;
};

}  // namespace guozhuang::engine
