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
using api::OperationSpec;

/// Whatever the operation fails with, later waits throw.
void wait_first(const engine::Pending& pending, std::chrono::microseconds limit) {
    try {
        pending.progress_source().drive_until([&] { return pending.complete(); },
                                              base::deadline_after(limit));
    } catch (const Error& error) {
        base::log_debug(error.what());  // what has ended the job
    }
}

template <class H = Handle>
H start(OperationSpec&& spec, bool caller_waits) {
    const auto limit = caller_waits ? 0us : spec.wait_first;
    auto pending = api::submit(std::move(spec), caller_waits || limit > 0us);
    if (limit > 0us) wait_first(*pending, limit);
    return H(std::move(pending));
}

template <class O>
protocol::Description description_of(OperationKind operation, const O& options) {
    protocol::Description description{.operation = operation};
    if constexpr (std::is_same_v<O, AllreduceOptions>) {
        description.op = options.op;
        description.prescale = options.prescale;
        description.postscale = options.postscale;
    }
    return description;
}

template <class O>
OperationSpec spec_of(OperationKind operation, std::span<const TensorView> tensors,
                      const O& options) {
    api::check_name(name_of(operation), options.name);
    OperationSpec spec{.set = api::set_runtime_of(options.session, options.process_set),
                       .description = description_of(operation, options),
                       .name = options.name,
                       .tensors = engine::SharedTensors(tensors),
                       .outputs = engine::SharedTensors(options.outputs),
                       .stream = options.stream,
                       .keep_alive = options.keep_alive,
                       .timeout = options.timeout,
                       .wait_first = options.wait_first};
    if constexpr (std::is_same_v<O, AllreduceOptions>)
        spec.splits.assign(options.splits.begin(), options.splits.end());
    return spec;
}

template <class O>
OperationSpec group_of(OperationKind operation, std::span<const TensorView> tensors,
                       const O& options) {
    auto spec = spec_of(operation, tensors, options);
    spec.description.group = true;
    return spec;
}

OperationSpec broadcast_of(const TensorView& tensor, int root, const Options& options) {
    auto spec = spec_of(OperationKind::broadcast, {&tensor, 1}, options);
    spec.description.root = root;
    return spec;
}

OperationSpec all_to_all_of(const ConstTensorView& tensor, std::span<const std::int64_t> splits,
                            const Options& options) {
    auto spec = spec_of(OperationKind::all_to_all, {&tensor.view(), 1}, options);
    spec.splits.assign(splits.begin(), splits.end());
    return spec;
}

/// Whether it is done. Else it is to be submitted, with the number that it may have got.
bool allreduce_eagerly(SetRuntime& set, const TensorView& tensor, const AllreduceOptions& options,
                       std::uint64_t& number) {
    const auto description = description_of(OperationKind::allreduce, options);
    api::check({set, description, options.name, {&tensor, 1}, options.timeout, options.wait_first});
    const bool may_be_eager = tensor.device.kind == DeviceKind::host && options.outputs.empty() &&
                              options.splits.empty() && options.op != ReduceOp::adasum &&
                              options.timeout == 0ms && set.device_mismatch(tensor).empty();
    return may_be_eager && set.engine().run_eagerly({description, tensor, options.name, number});
}

JoinHandle start_join(const JoinOptions& options, bool caller_waits) {
    return start<JoinHandle>({.set = api::set_runtime_of(options.session, options.process_set),
                              .description = {.operation = OperationKind::join}},
                             caller_waits);
}

Handle start_point_to_point(const TensorView& tensor, const engine::Route& route,
                            const PointToPointOptions& options, bool caller_waits) {
    return Handle(
        api::submit_point_to_point(*api::set_runtime_of(options.session, options.process_set),
                                   tensor, route, options, caller_waits));
}

}  // namespace

void allreduce(const TensorView& tensor, const AllreduceOptions& options) {
    api::check_name(name_of(OperationKind::allreduce), options.name);
    const auto set = api::set_runtime_of(options.session, options.process_set);
    std::uint64_t number = 0;
    std::optional<Handle> handle;
    try {
        if (allreduce_eagerly(*set, tensor, options, number)) return;
        auto spec = spec_of(OperationKind::allreduce, {&tensor, 1}, options);
        spec.number = number;
        handle = start(std::move(spec), true);
    } catch (...) {  // so that the caller can try again
        if (number != 0) set->engine().return_number(OperationKind::allreduce, number);
        throw;
    }
    handle->wait();
}
Handle allreduce_async(const TensorView& tensor, const AllreduceOptions& options) {
    return start(spec_of(OperationKind::allreduce, {&tensor, 1}, options), false);
}

void grouped_allreduce(std::span<const TensorView> tensors, const AllreduceOptions& options) {
    start(group_of(OperationKind::allreduce, tensors, options), true).wait();
}
Handle grouped_allreduce_async(std::span<const TensorView> tensors,
                               const AllreduceOptions& options) {
    return start(group_of(OperationKind::allreduce, tensors, options), false);
}

Result all_gather(const ConstTensorView& tensor, const Options& options) {
    return start<ResultHandle>(spec_of(OperationKind::all_gather, {&tensor.view(), 1}, options),
                               true)
        .take();
}
ResultHandle all_gather_async(const ConstTensorView& tensor, const Options& options) {
    return start<ResultHandle>(spec_of(OperationKind::all_gather, {&tensor.view(), 1}, options),
                               false);
}

void broadcast(const TensorView& tensor, int root, const Options& options) {
    start(broadcast_of(tensor, root, options), true).wait();
}
Handle broadcast_async(const TensorView& tensor, int root, const Options& options) {
    return start(broadcast_of(tensor, root, options), false);
}

Result all_to_all(const ConstTensorView& tensor, std::span<const std::int64_t> splits,
                  const Options& options) {
    return start<ResultHandle>(all_to_all_of(tensor, splits, options), true).take();
}
ResultHandle all_to_all_async(const ConstTensorView& tensor, std::span<const std::int64_t> splits,
                              const Options& options) {
    return start<ResultHandle>(all_to_all_of(tensor, splits, options), false);
}

Result reduce_scatter(const ConstTensorView& tensor, const AllreduceOptions& options) {
    return start<ResultHandle>(spec_of(OperationKind::reduce_scatter, {&tensor.view(), 1}, options),
                               true)
        .take();
}
ResultHandle reduce_scatter_async(const ConstTensorView& tensor, const AllreduceOptions& options) {
    return start<ResultHandle>(spec_of(OperationKind::reduce_scatter, {&tensor.view(), 1}, options),
                               false);
}

std::vector<Result> grouped_all_gather(std::span<const TensorView> tensors,
                                       const Options& options) {
    return start<ResultsHandle>(group_of(OperationKind::all_gather, tensors, options), true).take();
}
ResultsHandle grouped_all_gather_async(std::span<const TensorView> tensors,
                                       const Options& options) {
    return start<ResultsHandle>(group_of(OperationKind::all_gather, tensors, options), false);
}

std::vector<Result> grouped_reduce_scatter(std::span<const TensorView> tensors,
                                           const AllreduceOptions& options) {
    return start<ResultsHandle>(group_of(OperationKind::reduce_scatter, tensors, options), true)
        .take();
}
ResultsHandle grouped_reduce_scatter_async(std::span<const TensorView> tensors,
                                           const AllreduceOptions& options) {
    return start<ResultsHandle>(group_of(OperationKind::reduce_scatter, tensors, options), false);
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
    start(spec_of(OperationKind::barrier, {}, options), true).wait();
}
Handle barrier_async(const Options& options) {
    return start(spec_of(OperationKind::barrier, {}, options), false);
}

int join(const JoinOptions& options) {
    return start_join(options, true).last_rank();
}
JoinHandle join_async(const JoinOptions& options) {
    return start_join(options, false);
}

}  // namespace guozhuang
