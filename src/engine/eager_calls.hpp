#pragma once

#include <atomic>
#include <exception>
#include <memory>

#include "collectives/policy.hpp"
#include "engine/backend.hpp"
#include "engine/call.hpp"
#include "engine/context.hpp"
#include "engine/pending.hpp"
#include "engine/submission_queue.hpp"

namespace guozhuang::engine {

/// Runs allreduces before the ranks have agreed on them: if all ranks of the set make the call at
/// about the same time and have nothing else pending, they need not negotiate. Only the thread that
/// holds the engine's lock calls this, except may_run().
class EagerCalls {
public:
    /// `policy`: of the log's entries.
    EagerCalls(const Context& context, SubmissionQueue& queue, const selection::Policy& policy)
        : context_(context), queue_(queue) {
        bundle_.policy = policy;
        bundle_.contributors = context.size;
        bundle_.entries.reserve(1);  // a call allocates nothing
    }
    /// Sets the backend that runs them. Before the first call.
    void set_backend(Backend& host) noexcept { host_ = &host; }

    bool may_run() const noexcept {
        return host_ != nullptr && bundle_.policy.forced == Algorithm::automatic &&
               !queue_.has_pending();
    }
    /// Returns false if it has changed nothing except the call's number, or if it has set
    /// `failure`, which must end the job.
    bool run(Call& call, std::exception_ptr& failure);
    /// Whether a thread is in run(). Any thread.
    bool is_running() const noexcept { return running_.load(std::memory_order_acquire) != nullptr; }
    /// The call, for an error that names it.
    Request request_of(const Call& call) const;
    /// The call that run() is executing, as an operation for stall reports; null if there is none.
    /// A call that no report looks at costs nothing.
    std::shared_ptr<Pending> under_way(const std::shared_ptr<ProgressSource>& engine);
    /// Tells the others not to wait for this rank in run(): it waits for something else.
    void decline() noexcept {
        if (host_ != nullptr) host_->decline_eager();
    }

private:
    class Running;
    std::exception_ptr error_of(const std::exception_ptr& cause, const Call& call) const noexcept;

    const Context& context_;
    SubmissionQueue& queue_;
    Bundle bundle_;  ///< of the running call
    Backend* host_ = nullptr;
    std::atomic<const Call*> running_{nullptr};
    std::shared_ptr<Pending> watched_;  ///< the running one, if a stall report has looked at it
};

}  // namespace guozhuang::engine
