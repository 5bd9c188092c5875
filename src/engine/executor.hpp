#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "engine/backend.hpp"
#include "engine/context.hpp"
#include "engine/pending.hpp"
#include "engine/submission_queue.hpp"
#include "protocol/log_entry.hpp"

namespace guozhuang::engine {

/// Where bundles of one kind of memory run: inline, on the thread that drives the engine, or on a
/// communication stream of the device.
struct DeviceExecutor {
    Backend* backend = nullptr;
    std::shared_ptr<device::Stream> stream;  ///< null: inline
};

/// Brings executors into being: what other ranks have on a kind of device this rank must take part
/// in, though it may not have used that kind.
class DeviceProvider {
public:
    virtual ~DeviceProvider() = default;
    /// Makes sure that Executor::add() has been called for the kind. Throws Error(unavailable).
    virtual void provide(DeviceKind kind) = 0;
};

/// Whom an executor tells how it goes: the engine. Thread-safe, since streams call it, too.
class ExecutionListener {
public:
    virtual ~ExecutionListener() = default;
    /// The operations have ended.
    virtual void on_end(std::span<std::shared_ptr<Pending>> operations,
                        std::exception_ptr error) noexcept = 0;
    /// What this rank ran has failed half-way: the others cannot finish it.
    virtual void on_failure(const std::exception_ptr& error) = 0;
};

/// Runs the execute entries of the log: each is a bundle for the backend of its device, or an
/// action in its place. add() and clear() may be called from any thread, run() by whoever drives.
class Executor {
public:
    /// `provider`: null if all executors are there from the beginning.
    Executor(const Context& context, DeviceProvider* provider)
        : context_(context), provider_(provider) {}

    void add(DeviceKind kind, DeviceExecutor executor);
    /// Lets streams run empty and drops them: by a thread that is none of theirs.
    void clear() noexcept;

    /// What this rank moves if it has joined, and so has not submitted what the others have.
    Requests neutral_contributions(const protocol::LogEntry& entry,
                                   std::shared_ptr<ProgressSource> progress_source) const;
    /// Runs the requests of an entry, inline to their end, which the listener hears of. Throws what
    /// fails, as an Error, after the listener has heard of it.
    void run(const protocol::LogEntry& entry, Requests requests,
             const std::shared_ptr<ExecutionListener>& listener);

private:
    DeviceExecutor of(DeviceKind kind) const;
    void run_on(Backend& backend, const Bundle& bundle, std::string_view name,
                ExecutionListener& listener);
    void run_on_stream(const DeviceExecutor& executor, Bundle bundle, Requests requests,
                       const std::shared_ptr<ExecutionListener>& listener);
    void attempt(protocol::OperationKind operation, ExecutionListener& listener,
                 const std::function<void()>& work) const;

    const Context& context_;
    DeviceProvider* const provider_;
    mutable base::Mutex mutex_;
    std::map<DeviceKind, DeviceExecutor> executors_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::engine
