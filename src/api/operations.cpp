#include <chrono>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "api/process_set_state.hpp"
#include "api/requests.hpp"
#include "base/log.hpp"
#include "base/wait.hpp"
#include "engine/pending.hpp"

namespace guozhuang {
namespace {

using namespace std::chrono_literals;

/// How long the next asynchronous collective of this thread waits; 0: not at all.
thread_local std::chrono::microseconds next_first_wait{0};

/// Later waits throw the operation's error.
void drive_for(const engine::Pending& pending, std::chrono::microseconds limit) {
    try {
        pending.progress_source().drive_until([&] { return pending.complete(); },
                                              base::deadline_after(limit));
    } catch (const Error& error) {
        base::log_debug(error.what());  // what has ended the job
    }
}

/// Checks the call and submits it.
template <class H = Handle, class O>
H start(const engine::Call& call, const O& options, bool caller_waits) {
    const auto limit = caller_waits ? 0us : std::exchange(next_first_wait, 0us);
    const auto set = api::set_runtime_of(options.session, options.process_set);
    api::check(*set, call);
    auto pending = api::submit(*set, call, caller_waits || limit > 0us);
    if (limit > 0us) drive_for(*pending, limit);
    return H(std::move(pending));
}

template <class O>
engine::Call call_of(OperationKind operation, std::span<const TensorView> tensors,
                     const O& options) {
    api::check_name(name_of(operation), options.name);
    engine::Call call{.description = {.operation = operation},
                      .name = options.name,
                      .tensors = tensors,
                      .outputs = options.outputs,
                      .stream = options.stream,
                      .keep_alive = options.keep_alive,
                      .timeout = options.timeout};
    if constexpr (requires { options.op; }) {
        call.description.op = options.op;
        call.description.prescale = options.prescale;
        call.description.postscale = options.postscale;
    }
    if constexpr (requires { options.splits; }) call.splits = options.splits;
    return call;
}

template <class O>
engine::Call group_of(OperationKind operation, std::span<const TensorView> tensors,
                      const O& options) {
    auto call = call_of(operation, tensors, options);
    call.description.group = true;
    return call;
}

engine::Call broadcast_of(const TensorView& tensor, int root, const Options& options) {
    auto call = call_of(OperationKind::broadcast, {&tensor, 1}, options);
    call.description.root = root;
    return call;
}

engine::Call all_to_all_of(const ConstTensorView& tensor, std::span<const std::int64_t> splits,
                           const Options& options) {
    auto call = call_of(OperationKind::all_to_all, {&tensor.view(), 1}, options);
    call.splits = splits;
    return call;
}

/// Whether a checked call may run before the ranks have agreed on it.
bool may_be_eager(SetRuntime& set, const engine::Call& call) {
    const auto& tensor = call.tensors.front();
    return tensor.device.kind == DeviceKind::host && call.description.op != ReduceOp::adasum &&
           call.timeout == 0ms && set.device_mismatch(tensor).empty();
}

Handle start_point_to_point(const TensorView& tensor, const protocol::Route& route,
                            const PointToPointOptions& options, bool caller_waits) {
    return Handle(
        api::submit_point_to_point(*api::set_runtime_of(options.session, options.process_set),
                                   tensor, route, options, caller_waits));
}

}  // namespace

void allreduce(const TensorView& tensor, const AllreduceOptions& options) {
    auto call = call_of(OperationKind::allreduce, {&tensor, 1}, options);
    const auto set = api::set_runtime_of(options.session, options.process_set);
    api::check(*set, call);
    std::optional<Handle> handle;
    try {
        if (may_be_eager(*set, call) && set->engine().run_eagerly(call)) return;
        handle = Handle(api::submit(*set, call, true));
    } catch (...) {  // so that the caller can try again
        if (call.number > 0) set->engine().return_number(OperationKind::allreduce, call.number);
        throw;
    }
    handle->wait();
}
Handle allreduce_async(const TensorView& tensor, const AllreduceOptions& options) {
    return start(call_of(OperationKind::allreduce, {&tensor, 1}, options), options, false);
}

void grouped_allreduce(std::span<const TensorView> tensors, const AllreduceOptions& options) {
    start(group_of(OperationKind::allreduce, tensors, options), options, true).wait();
}
Handle grouped_allreduce_async(std::span<const TensorView> tensors,
                               const AllreduceOptions& options) {
    return start(group_of(OperationKind::allreduce, tensors, options), options, false);
}

Result all_gather(const ConstTensorView& tensor, const Options& options) {
    return start<ResultHandle>(call_of(OperationKind::all_gather, {&tensor.view(), 1}, options),
                               options, true)
        .take();
}
ResultHandle all_gather_async(const ConstTensorView& tensor, const Options& options) {
    return start<ResultHandle>(call_of(OperationKind::all_gather, {&tensor.view(), 1}, options),
                               options, false);
}

void broadcast(const TensorView& tensor, int root, const Options& options) {
    start(broadcast_of(tensor, root, options), options, true).wait();
}
Handle broadcast_async(const TensorView& tensor, int root, const Options& options) {
    return start(broadcast_of(tensor, root, options), options, false);
}

Result all_to_all(const ConstTensorView& tensor, std::span<const std::int64_t> splits,
                  const Options& options) {
    return start<ResultHandle>(all_to_all_of(tensor, splits, options), options, true).take();
}
ResultHandle all_to_all_async(const ConstTensorView& tensor, std::span<const std::int64_t> splits,
                              const Options& options) {
    return start<ResultHandle>(all_to_all_of(tensor, splits, options), options, false);
}

Result reduce_scatter(const ConstTensorView& tensor, const AllreduceOptions& options) {
    return start<ResultHandle>(call_of(OperationKind::reduce_scatter, {&tensor.view(), 1}, options),
                               options, true)
        .take();
}
ResultHandle reduce_scatter_async(const ConstTensorView& tensor, const AllreduceOptions& options) {
    return start<ResultHandle>(call_of(OperationKind::reduce_scatter, {&tensor.view(), 1}, options),
                               options, false);
}

std::vector<Result> grouped_all_gather(std::span<const TensorView> tensors,
                                       const Options& options) {
    return start<ResultsHandle>(group_of(OperationKind::all_gather, tensors, options), options,
                                true)
        .take();
}
ResultsHandle grouped_all_gather_async(std::span<const TensorView> tensors,
                                       const Options& options) {
    return start<ResultsHandle>(group_of(OperationKind::all_gather, tensors, options), options,
                                false);
}

std::vector<Result> grouped_reduce_scatter(std::span<const TensorView> tensors,
                                           const AllreduceOptions& options) {
    return start<ResultsHandle>(group_of(OperationKind::reduce_scatter, tensors, options), options,
                                true)
        .take();
}
ResultsHandle grouped_reduce_scatter_async(std::span<const TensorView> tensors,
                                           const AllreduceOptions& options) {
    return start<ResultsHandle>(group_of(OperationKind::reduce_scatter, tensors, options), options,
                                false);
}

void send(const ConstTensorView& tensor, int to, const PointToPointOptions& options) {
    start_point_to_point(tensor.view(), {.peer = to, .tag = options.tag, .sending = true}, options,
                         true)
        .wait();
}
Handle send_async(const ConstTensorView& tensor, int to, const PointToPointOptions& options) {
    return start_point_to_point(tensor.view(), {.peer = to, .tag = options.tag, .sending = true},
                                options, false);
}
void recv(const TensorView& tensor, int from, const PointToPointOptions& options) {
    start_point_to_point(tensor, {.peer = from, .tag = options.tag, .sending = false}, options,
                         true)
        .wait();
}
Handle recv_async(const TensorView& tensor, int from, const PointToPointOptions& options) {
    return start_point_to_point(tensor, {.peer = from, .tag = options.tag, .sending = false},
                                options, false);
}

void barrier(const Options& options) {
    start(call_of(OperationKind::barrier, {}, options), options, true).wait();
}
Handle barrier_async(const Options& options) {
    return start(call_of(OperationKind::barrier, {}, options), options, false);
}

int join(const JoinOptions& options) {
    return start<JoinHandle>({.description = {.operation = OperationKind::join}}, options, true)
        .last_rank();
}
JoinHandle join_async(const JoinOptions& options) {
    return start<JoinHandle>({.description = {.operation = OperationKind::join}}, options, false);
}

void detail::wait_first(std::chrono::microseconds limit) noexcept {
    next_first_wait = limit;
}

}  // namespace guozhuang
