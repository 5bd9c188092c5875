#include "engine/executor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <guozhuang/error.hpp>
#include <ranges>
#include <utility>

#include "base/error_text.hpp"
#include "base/failpoint.hpp"
#include "base/keep_for_ever.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {
namespace {

using namespace std::chrono_literals;

/// How long a released stream may take to end before its resources are kept for ever.
constexpr auto most_time_to_drain = 2s;

/// Null if it runs inline.
const std::shared_ptr<StreamExecutor>* on_stream_of(const DeviceExecutor& executor) {
    return std::get_if<std::shared_ptr<StreamExecutor>>(&executor);
}

}  // namespace

void Executor::add(DeviceKind kind, DeviceExecutor executor) {
    const base::Lock lock(mutex_);
    executors_.insert_or_assign(kind, std::move(executor));
}

bool Executor::is_idle() const noexcept {
    const base::Lock lock(mutex_);
    return std::ranges::all_of(executors_ | std::views::values, [](const auto& executor) {
        const auto* on_stream = on_stream_of(executor);
        return on_stream == nullptr || (*on_stream)->is_idle();
    });
}

void Executor::release() noexcept {
    const base::Lock lock(mutex_);
    for (const auto& [kind, executor] : executors_)
        if (const auto* on_stream = on_stream_of(executor)) (*on_stream)->release();
}

void Executor::clear(bool memory_on_loan) noexcept {
    if (base::is_aborted(context_.doorbell)) release();
    std::map<DeviceKind, DeviceExecutor> executors;
    {
        const base::Lock lock(mutex_);
        executors.swap(executors_);
    }
    bool is_in_use = memory_on_loan;
    for (const auto& [kind, executor] : executors)
        if (const auto* on_stream = on_stream_of(executor)) {
            is_in_use |= !(*on_stream)->drain(base::Clock::now() + most_time_to_drain);
            (*on_stream)->stop();
        }
    if (is_in_use) base::keep_for_ever(std::move(executors));
}

DeviceExecutor Executor::of(DeviceKind kind) const {
    const base::Lock lock(mutex_);
    const auto found = executors_.find(kind);
    if (found == executors_.end())
        throw Error(ErrorCode::not_initialised,
                    fmt::format("{} has been closed: it takes no more operations",
                                context_.group_ranks.are_the_world() ? "this session"
                                                                     : context_.group_ranks.name()),
                    {.ranks = {context_.rank}});
    return found->second;
}

Requests Executor::identity_inputs(const protocol::LogEntry& entry,
                                   const std::shared_ptr<ProgressSource>& progress_source) const {
    Requests requests;
    for (const auto& item : entry.items)
        requests.push_back(std::make_shared<Pending>(identity_input(item), progress_source));
    return requests;
}

Request Executor::identity_input(const protocol::Item& item) const {
    const auto kind = item.description->device;
    if (provider_ != nullptr) provider_->provide(kind);
    const auto executor = of(kind);
    const auto* on_stream = on_stream_of(executor);
    const auto device = on_stream == nullptr ? Device{} : (*on_stream)->device();
    return engine::identity_input(item, device);
}

void Executor::run(const protocol::LogEntry& entry, Requests requests,
                   const std::shared_ptr<ExecutionListener>& listener) {
    if (requests.size() != entry.items.size())
        throw Error(ErrorCode::internal,
                    fmt::format("rank {} was told to execute {}, which it has not submitted",
                                context_.rank, base::quote(entry.items.front().name.text())));
    // The requests may be gone when it fails.
    const FailedWork if_it_fails{name_of(requests.front()->request().description->operation),
                                 entry.items.front().name.text(), entry.items.size() - 1};
    if (const auto& action = requests.front()->request().action) {
        attempt(if_it_fails, *listener, action);
        return listener->on_end(requests, nullptr);
    }
    auto bundle = bundle_of(entry, requests, context_.group_ranks, context_.size);
    const auto executor = of(bundle.description->device);
    if (context_.timeline->on())
        for (const auto& pending : requests) context_.timeline->enter(pending.get(), "bundle");
    if (const auto* on_stream = on_stream_of(executor))
        return attempt(if_it_fails, *listener, [&] {
            (*on_stream)->enqueue(std::move(bundle), std::move(requests), context_, listener);
        });
    run_on(*std::get<Backend*>(executor), bundle, if_it_fails, *listener);
    listener->on_end(requests, nullptr);
}

std::shared_ptr<StagedMessage> Executor::stage(
    const Request& request, const std::shared_ptr<ExecutionListener>& listener) const {
    const auto& tensor = request.tensors.front();
    if (!request.device || tensor.bytes() == 0) return nullptr;
    const auto executor = of(tensor.device.kind);
    try {
        return std::make_shared<StagedMessage>(*on_stream_of(executor), tensor.bytes(), context_,
                                               listener);
    } catch (const Error& error) {
        throw Error(
            error.code(),
            fmt::format("{}: rank {} cannot stage its tensor, {} [{}] of {} bytes, in "
                        "pinned memory: {}",
                        request.name.text(), context_.rank, name_of(tensor.dtype),
                        fmt::join(tensor.shape, ", "), tensor.bytes(), error.what()),
            {.operation = request.route.sending ? "send" : "recv",
             .ranks = {context_.rank, context_.group_ranks.world_rank(request.route.peer)}});
    }
}

/// If the backend fails, `running` stays written: reports then say what failed.
void Executor::run_on(Backend& backend, const Bundle& bundle, const FailedWork& if_it_fails,
                      ExecutionListener& listener) {
    const trace::TimelineSlice slice(*context_.timeline, "bundle",
                                     [&] { return facts_of(bundle, context_.set); });
    context_.activity.running.write(if_it_fails.operation, if_it_fails.tensor);
    attempt(if_it_fails, listener, [&] {
        base::pass(base::Failpoint::execute);
        backend.run(bundle);
        base::pass(base::Failpoint::executed);
    });
    context_.activity.running.clear();
}

void Executor::attempt(const FailedWork& if_it_fails, ExecutionListener& listener,
                       const std::function<void()>& work) const {
    try {
        work();
    } catch (...) {
        const auto error = as_error(std::current_exception(), if_it_fails, context_.rank);
        listener.on_failure(error);
        std::rethrow_exception(error);
    }
}

}  // namespace guozhuang::engine
