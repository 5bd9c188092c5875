#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <variant>

#include "base/mutex.hpp"
#include "engine/backend.hpp"
#include "engine/context.hpp"
#include "engine/execution.hpp"
#include "engine/execution_listener.hpp"
#include "engine/pending.hpp"
#include "engine/staged_message.hpp"
#include "engine/stream_executor.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/matcher.hpp"

namespace guozhuang::engine {

/// Where bundles of one kind of memory run: inline, on the thread that drives the engine, or on a
/// communication stream of the device.
using DeviceExecutor = std::variant<Backend*, std::shared_ptr<StreamExecutor>>;

/// Makes executors when they are needed: a joined rank must contribute to the other ranks'
/// operations even on a kind of device that it has not used itself.
class DeviceProvider {
public:
    virtual ~DeviceProvider() = default;
    /// Makes sure that Executor::add() has been called for the kind. Throws Error(unavailable).
    virtual void provide(DeviceKind kind) = 0;
};

/// Runs the execute entries of the log: each is a bundle for the backend of its device, or an
/// action. add() and clear() may be called from any thread, run() by the thread that drives.
class Executor {
public:
    /// `provider`: null if all executors are added before the first entry.
    Executor(const Context& context, DeviceProvider* provider)
        : context_(context), provider_(provider) {}

    void add(DeviceKind kind, DeviceExecutor executor);
    /// Whether no stream has a bundle to move.
    bool is_idle() const noexcept;
    /// The job is over, and all operations have failed: unblocks streams that wait for a rank.
    void release() noexcept;
    /// Drops the executors, once this rank no longer drives and all its operations have ended.
    /// First drains their streams, after release() if the job has been aborted. Keeps all executors
    /// for ever if a stream takes more than 2 s to drain, or with `memory_on_loan` (messages may
    /// still use memory).
    void clear(bool memory_on_loan) noexcept;

    /// Makes the contributions of this rank, which has joined, to an entry that it has not
    /// submitted: one request per item.
    Requests identity_inputs(const protocol::LogEntry& entry,
                             const std::shared_ptr<ProgressSource>& progress_source) const;
    /// Runs the requests of an entry, and tells the listener of their end: before it returns if
    /// they run inline, later if they run on a stream. If they fail inline, tells the listener and
    /// throws Error.
    void run(const protocol::LogEntry& entry, Requests requests,
             const std::shared_ptr<ExecutionListener>& listener);
    /// Takes pinned memory and a stream to stage the payload of a send or receive; null if its
    /// tensor is in host memory, or empty. Throws Error, which names the request. Any thread.
    std::shared_ptr<StagedMessage> stage(const Request& request,
                                         const std::shared_ptr<ExecutionListener>& listener) const;

private:
    DeviceExecutor of(DeviceKind kind) const;
    void run_on(Backend& backend, const Bundle& bundle, const FailedWork& if_it_fails,
                ExecutionListener& listener);
    Request identity_input(const protocol::Item& item) const;
    void attempt(const FailedWork& if_it_fails, ExecutionListener& listener,
                 const std::function<void()>& work) const;

    const Context& context_;
    DeviceProvider* const provider_;
    mutable base::Mutex mutex_;
    std::map<DeviceKind, DeviceExecutor> executors_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::engine
