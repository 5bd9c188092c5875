#include <chrono>
#include <guozhuang/operations.hpp>
#include <utility>
#include <variant>

#include "border.hpp"

struct GzHandle {
    std::variant<guozhuang::Handle, guozhuang::ResultHandle, guozhuang::ResultsHandle,
                 guozhuang::JoinHandle>
        operation;
};

struct GzResult {
    std::vector<guozhuang::Result> results;
};

namespace guozhuang::c {
namespace {

/// The caller's options, which are read before anything can fail: what is to be kept alive has its
/// owner from then on.
class OperationOptions {
public:
    explicit OperationOptions(const GzOptions* given)
        : given_(options_or(given, GzOptions GZ_OPTIONS_INIT)) {
        if (const auto& kept = given_.keep_alive; kept.release != nullptr)
            keep_alive_ = std::shared_ptr<void>(kept.owner, kept.release);
    }

    Options plain() const {
        if (given_.prescale != 1 || given_.postscale != 1) refuse("this operation takes no scales");
        if (given_.splits != nullptr) refuse("this operation takes no splits in its options");
        return common<Options>();
    }
    AllreduceOptions reducing(GzReduceOp op) const {
        auto options = common<AllreduceOptions>();
        options.op = reduce_op_of(op);
        options.prescale = given_.prescale;
        options.postscale = given_.postscale;
        const auto splits = optional_list_of(given_.splits, given_.split_count, "splits");
        options.splits.assign(splits.begin(), splits.end());
        return options;
    }
    PointToPointOptions point_to_point(std::uint16_t tag) const {
        if (given_.name != nullptr) refuse("send and recv take a tag, and no name");
        auto options = plain();
        if (!options.outputs.empty()) refuse("send and recv take no outputs");
        return {.tag = tag,
                .stream = options.stream,
                .keep_alive = std::move(options.keep_alive),
                .process_set = std::move(options.process_set),
                .timeout = options.timeout};
    }

private:
    template <class O>
    O common() const {
        return {.name = text_of(given_.name),
                .stream = stream_of(given_.stream),
                .outputs = tensors_of(
                    optional_list_of(given_.outputs, given_.output_count, "outputs").data(),
                    given_.output_count),
                .keep_alive = keep_alive_,
                .process_set = set_of(given_.process_set),
                .timeout = std::chrono::milliseconds(given_.timeout_ms)};
    }

    GzOptions given_;
    std::shared_ptr<void> keep_alive_;
};

/// A blocking operation.
template <class Operation>
GzStatus run(const GzOptions* given, Operation&& operation) noexcept {
    return guarded([&] { operation(OperationOptions(given)); });
}

/// One with a handle. Memory for that is there before the operation is submitted: what is submitted
/// always has a handle.
template <class Submit>
GzStatus start(const GzOptions* given, GzHandle** where, Submit&& submit) noexcept {
    return guarded([&] {
        const OperationOptions options(given);
        required(where, "where the handle goes");
        auto handle = std::make_unique<GzHandle>();
        handle->operation = submit(options);
        give(where, std::move(handle));
    });
}

/// Fills an object whose memory is there before the results: `take` returns one, or several.
template <class Take>
void give_results(GzResult** where, Take&& take) {
    required(where, "where the result goes");
    auto object = std::make_unique<GzResult>();
    if constexpr (std::is_same_v<decltype(take()), Result>) {
        object->results.resize(1);
        object->results.front() = take();
    } else {
        object->results = take();
    }
    give(where, std::move(object));
}

/// A blocking operation with results.
template <class Operation>
GzStatus run_for_results(const GzOptions* given, GzResult** where, Operation&& operation) noexcept {
    return run(given, [&](const OperationOptions& options) {
        give_results(where, [&] { return operation(options); });
    });
}

const Handle& operation_of(const GzHandle* handle) {
    const auto& any = required(handle, "the handle").operation;
    return std::visit([](const Handle& operation) -> const Handle& { return operation; }, any);
}

}  // namespace
}  // namespace guozhuang::c

using namespace guozhuang::c;  // NOLINT(google-build-using-namespace)
namespace gz = guozhuang;

GzStatus gz_allreduce(const GzTensor* tensor, GzReduceOp op, const GzOptions* options) {
    return run(options,
               [&](const auto& given) { gz::allreduce(tensor_of(tensor), given.reducing(op)); });
}
GzStatus gz_allreduce_async(const GzTensor* tensor, GzReduceOp op, const GzOptions* options,
                            GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::allreduce_async(tensor_of(tensor), given.reducing(op));
    });
}

GzStatus gz_grouped_allreduce(const GzTensor* tensors, size_t count, GzReduceOp op,
                              const GzOptions* options) {
    return run(options, [&](const auto& given) {
        gz::grouped_allreduce(tensors_of(tensors, count), given.reducing(op));
    });
}
GzStatus gz_grouped_allreduce_async(const GzTensor* tensors, size_t count, GzReduceOp op,
                                    const GzOptions* options, GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::grouped_allreduce_async(tensors_of(tensors, count), given.reducing(op));
    });
}

GzStatus gz_broadcast(const GzTensor* tensor, int root, const GzOptions* options) {
    return run(options,
               [&](const auto& given) { gz::broadcast(tensor_of(tensor), root, given.plain()); });
}
GzStatus gz_broadcast_async(const GzTensor* tensor, int root, const GzOptions* options,
                            GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::broadcast_async(tensor_of(tensor), root, given.plain());
    });
}

GzStatus gz_barrier(const GzOptions* options) {
    return run(options, [&](const auto& given) { gz::barrier(given.plain()); });
}
GzStatus gz_barrier_async(const GzOptions* options, GzHandle** handle) {
    return start(options, handle,
                 [&](const auto& given) { return gz::barrier_async(given.plain()); });
}

GzStatus gz_join(const GzProcessSet* set, int* last_rank) {
    return guarded([&] {
        const int rank = gz::join({.process_set = set_of(set)});
        if (last_rank != nullptr) *last_rank = rank;
    });
}
GzStatus gz_join_async(const GzProcessSet* set, GzHandle** handle) {
    return start(nullptr, handle,
                 [&](const auto&) { return gz::join_async({.process_set = set_of(set)}); });
}

GzStatus gz_send(const GzTensor* tensor, int to, uint16_t tag, const GzOptions* options) {
    return run(options, [&](const auto& given) {
        gz::send(tensor_of(tensor), to, given.point_to_point(tag));
    });
}
GzStatus gz_send_async(const GzTensor* tensor, int to, uint16_t tag, const GzOptions* options,
                       GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::send_async(tensor_of(tensor), to, given.point_to_point(tag));
    });
}
GzStatus gz_recv(const GzTensor* tensor, int from, uint16_t tag, const GzOptions* options) {
    return run(options, [&](const auto& given) {
        gz::recv(tensor_of(tensor), from, given.point_to_point(tag));
    });
}
GzStatus gz_recv_async(const GzTensor* tensor, int from, uint16_t tag, const GzOptions* options,
                       GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::recv_async(tensor_of(tensor), from, given.point_to_point(tag));
    });
}

GzStatus gz_all_gather(const GzTensor* tensor, const GzOptions* options, GzResult** result) {
    return run_for_results(options, result, [&](const auto& given) {
        return gz::all_gather(tensor_of(tensor), given.plain());
    });
}
GzStatus gz_all_gather_async(const GzTensor* tensor, const GzOptions* options, GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::all_gather_async(tensor_of(tensor), given.plain());
    });
}

GzStatus gz_all_to_all(const GzTensor* tensor, const int64_t* splits, size_t split_count,
                       const GzOptions* options, GzResult** result) {
    return run_for_results(options, result, [&](const auto& given) {
        return gz::all_to_all(tensor_of(tensor), optional_list_of(splits, split_count, "splits"),
                              given.plain());
    });
}
GzStatus gz_all_to_all_async(const GzTensor* tensor, const int64_t* splits, size_t split_count,
                             const GzOptions* options, GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::all_to_all_async(tensor_of(tensor),
                                    optional_list_of(splits, split_count, "splits"), given.plain());
    });
}

GzStatus gz_reduce_scatter(const GzTensor* tensor, GzReduceOp op, const GzOptions* options,
                           GzResult** result) {
    return run_for_results(options, result, [&](const auto& given) {
        return gz::reduce_scatter(tensor_of(tensor), given.reducing(op));
    });
}
GzStatus gz_reduce_scatter_async(const GzTensor* tensor, GzReduceOp op, const GzOptions* options,
                                 GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::reduce_scatter_async(tensor_of(tensor), given.reducing(op));
    });
}

GzStatus gz_grouped_all_gather(const GzTensor* tensors, size_t count, const GzOptions* options,
                               GzResult** result) {
    return run_for_results(options, result, [&](const auto& given) {
        return gz::grouped_all_gather(tensors_of(tensors, count), given.plain());
    });
}
GzStatus gz_grouped_all_gather_async(const GzTensor* tensors, size_t count,
                                     const GzOptions* options, GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::grouped_all_gather_async(tensors_of(tensors, count), given.plain());
    });
}

GzStatus gz_grouped_reduce_scatter(const GzTensor* tensors, size_t count, GzReduceOp op,
                                   const GzOptions* options, GzResult** result) {
    return run_for_results(options, result, [&](const auto& given) {
        return gz::grouped_reduce_scatter(tensors_of(tensors, count), given.reducing(op));
    });
}
GzStatus gz_grouped_reduce_scatter_async(const GzTensor* tensors, size_t count, GzReduceOp op,
                                         const GzOptions* options, GzHandle** handle) {
    return start(options, handle, [&](const auto& given) {
        return gz::grouped_reduce_scatter_async(tensors_of(tensors, count), given.reducing(op));
    });
}

/// guozhuang::detail::wait_first(), for the Python package alone.
extern "C" GZ_API void gz_wait_first(int64_t limit_us) {
    gz::detail::wait_first(std::chrono::microseconds(limit_us));
}

GzStatus gz_handle_wait(const GzHandle* handle) {
    return guarded([&] { operation_of(handle).wait(); });
}
GzStatus gz_handle_wait_for(const GzHandle* handle, int64_t limit_us, int* done) {
    return put(done, [&] { return operation_of(handle).wait_for(limit_of(limit_us)) ? 1 : 0; });
}
GzStatus gz_handle_wait_stream(const GzHandle* handle, const GzStream* stream) {
    return guarded([&] {
        required(stream, "the stream");
        operation_of(handle).wait(*stream_of(stream));
    });
}
GzStatus gz_handle_wait_stream_for(const GzHandle* handle, const GzStream* stream, int64_t limit_us,
                                   int* done) {
    return put(done, [&] {
        required(stream, "the stream");
        const auto limit = limit_of(limit_us);
        return operation_of(handle).wait_for(*stream_of(stream), limit) ? 1 : 0;
    });
}
GzStatus gz_handle_test(const GzHandle* handle, int* done) {
    return put(done, [&] { return operation_of(handle).done() ? 1 : 0; });
}
GzStatus gz_handle_take(const GzHandle* handle, GzResult** result) {
    return guarded([&] {
        const auto& of = required(handle, "the handle");
        if (const auto* one = std::get_if<gz::ResultHandle>(&of.operation))
            give_results(result, [&] { return one->take(); });
        else if (const auto* several = std::get_if<gz::ResultsHandle>(&of.operation))
            give_results(result, [&] { return several->take(); });
        else
            refuse("this operation has no result to take");
    });
}
GzStatus gz_handle_last_rank(const GzHandle* handle, int* last_rank) {
    return put(last_rank, [&] {
        const auto* join = std::get_if<gz::JoinHandle>(&required(handle, "the handle").operation);
        if (join == nullptr) refuse("this operation is no join, which alone has a last rank");
        return join->last_rank();
    });
}
void gz_handle_free(GzHandle* handle) {
    delete handle;
}

GzStatus gz_result_count(const GzResult* result, size_t* count) {
    return put(count, [&] { return required(result, "the result").results.size(); });
}
GzStatus gz_result_tensor(const GzResult* result, size_t index, GzTensor* tensor) {
    return put(tensor, [&] {
        const auto& of = item_of(required(result, "the result").results, index, "tensors");
        auto view = as_c(const_cast<gz::Result&>(of).view());  // C may write to it
        view.shape = of.shape.data();
        return view;
    });
}
GzStatus gz_result_rows(const GzResult* result, size_t index, const int64_t** rows, size_t* count) {
    return guarded([&] {
        const auto& all = item_of(required(result, "the result").results, index, "tensors").rows;
        required(count, "where the number of rows goes");
        required(rows, "where the rows go") = all.data();
        *count = all.size();
    });
}
void gz_result_free(GzResult* result) {
    delete result;
}
