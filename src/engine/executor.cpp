#include "engine/executor.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <utility>

#include "base/failpoint.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {

void Executor::add(DeviceKind kind, DeviceExecutor executor) {
    const base::Lock lock(mutex_);
    executors_.insert_or_assign(kind, std::move(executor));
}

void Executor::clear() noexcept {
    std::map<DeviceKind, DeviceExecutor> executors;
    const base::Lock lock(mutex_);
    executors.swap(executors_);
}

DeviceExecutor Executor::of(DeviceKind kind) const {
    const base::Lock lock(mutex_);
    return executors_.at(kind);
}

Requests Executor::neutral_contributions(
    const protocol::LogEntry& entry, const std::shared_ptr<ProgressSource>& progress_source) const {
    if (provider_ != nullptr)
        provider_->provide(protocol::decode_description(entry.descriptions.front()).device);
    Requests requests;
    for (std::size_t i = 0; i < entry.items.size(); ++i)
        requests.push_back(
            std::make_shared<Pending>(neutral_contribution(entry, i), progress_source));
    return requests;
}

void Executor::run(const protocol::LogEntry& entry, Requests requests,
                   const std::shared_ptr<ExecutionListener>& listener) {
    if (requests.size() != entry.items.size())
        throw Error(ErrorCode::internal,
                    fmt::format("rank {} was told to execute '{}', which it has not submitted",
                                context_.rank, entry.items.front().name));
    if (const auto& action = requests.front()->request().action) {
        attempt(requests.front()->request().description->operation, *listener, action);
        return listener->on_end(requests, nullptr);
    }
    auto bundle = bundle_of(entry, requests, context_.group_ranks, context_.size);
    const auto executor = of(bundle.device);
    if (context_.timeline->on())
        for (const auto& pending : requests) context_.timeline->enter(pending.get(), "bundle");
    if (executor.stream)
        return run_on_stream(executor, std::move(bundle), std::move(requests), listener);
    run_on(*executor.backend, bundle, entry.items.front().name, *listener);
    listener->on_end(requests, nullptr);
}

/// If the backend fails, `running` stays written: reports then say what failed.
void Executor::run_on(Backend& backend, const Bundle& bundle, std::string_view name,
                      ExecutionListener& listener) {
    const trace::TimelineSlice slice(*context_.timeline, "bundle",
                                     [&] { return facts_of(bundle, context_.set); });
    context_.activity.running.write(name_of(bundle.operation), name);
    attempt(bundle.operation, listener, [&] {
        base::pass(base::Failpoint::execute);
        backend.run(bundle);
        base::pass(base::Failpoint::executed);
    });
    context_.activity.running.clear();
}

void Executor::attempt(protocol::OperationKind operation, ExecutionListener& listener,
                       const std::function<void()>& work) const {
    try {
        work();
    } catch (...) {
        const auto error = as_error(std::current_exception(), name_of(operation), context_.rank);
        listener.on_failure(error);
        std::rethrow_exception(error);
    }
}

/// Enqueues the bundle after the events that its tensors wait for. Enqueues the completion last,
/// when the handles have the event of the bundle's end.
void Executor::run_on_stream(const DeviceExecutor& executor, Bundle bundle, Requests requests,
                             const std::shared_ptr<ExecutionListener>& listener) {
    auto& stream = *executor.stream;
    for (const auto& pending : requests)
        if (const auto& ready = pending->request().ready) stream.wait(ready);
    auto error = std::make_shared<std::exception_ptr>();
    // The bundle points into the requests, so both are kept.
    stream.launch([this, backend = executor.backend, bundle = std::move(bundle), requests, error,
                   told = listener.get()] {
        try {
            run_on(*backend, bundle, requests.front()->request().name, *told);
        } catch (...) {
            *error = std::current_exception();
        }
    });
    const auto done = stream.record();
    for (const auto& pending : requests) pending->set_enqueued(done);
    stream.launch([listener, requests = std::move(requests), error]() mutable {
        listener->on_end(requests, std::exchange(*error, nullptr));
    });
    base::ring_local(context_.doorbell, context_.wait.audience);
}

}  // namespace guozhuang::engine
