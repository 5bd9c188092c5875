// Streams, their capture, and the host functions that they run.

#include <utility>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/capture.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/streams.hpp"
#include "support/emulated_cuda/submit.hpp"

namespace guozhuang::emulated_cuda {
namespace {

cudaError_t create(cudaStream_t* handle, unsigned flags) {
    require(handle && flags <= cudaStreamNonBlocking, cudaErrorInvalidValue);
    const auto ordering =
        flags == cudaStreamNonBlocking ? Stream::Ordering::independent : Stream::Ordering::blocking;
    *handle = add_stream(Stream::make(current_device(), ordering));
    return cudaSuccess;
}

/// A graph is the number of its nodes.
struct Graph {
    std::size_t nodes;
};

}  // namespace

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
    auto stream = find_stream(handle);
    require(stream != nullptr, cudaErrorInvalidResourceHandle);
    require(!stream->device().broken(), stream->device().error());
    return stream;
}

std::optional<std::uint64_t> submit(Stream& stream, Stream::Actor actor,
                                    std::function<void()> work) {
    if (record_node(stream)) return {};
    return stream.enqueue(actor, std::move(work));
}

}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return call(__func__, usual, [&] { return create(stream, cudaStreamDefault); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return call(__func__, usual, [&] { return create(stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return call(__func__, usual, [&] { return create(stream, flags); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call(__func__, usual, [&] {
        *least = 0;
        *greatest = -5;  // as on GPUs of today
        return cudaSuccess;
    });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return call(__func__, usual, [&] {
        const auto removed = remove_stream(stream);
        require(removed != nullptr, cudaErrorInvalidResourceHandle);
        invalidate_capture_of(*removed);
        removed->close();
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return call(__func__, unsafe_in_capture, [&] {
        const auto queried = stream_of(stream);
        require(!invalidate_capture_of(*queried), cudaErrorStreamCaptureUnsupported);
        return queried->reached(queried->position()) ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return call(__func__, unsafe_in_capture, [&] {
        const auto waited_for = stream_of(stream);
        require(!invalidate_capture_of(*waited_for), cudaErrorStreamCaptureUnsupported);
        // By the way of its order: the legacy stream also waits for the blocking ones.
        const auto position = waited_for->ordering() == Stream::Ordering::legacy
                                  ? waited_for->enqueue(Stream::Actor::copy, [] {})
                                  : waited_for->position();
        waited_for->wait_for(position, waited_for->device());
        return waited_for->device().error();
    });
}

cudaError_t cudaDeviceSynchronize() {
    return call(__func__, unsafe_in_capture, [&] {
        current_device().wait_until_idle();
        return current_device().error();
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return call(__func__, usual, [&] {
        require(function != nullptr, cudaErrorInvalidValue);
        submit(*stream_of(stream), Stream::Actor::host, [function, data] { function(data); });
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return call(__func__, usual, [&] {
        if (would_capture_implicitly(*stream_of(stream))) return cudaErrorStreamCaptureImplicit;
        *status = capture_status(*stream_of(stream));
        return cudaSuccess;
    });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return call(__func__, usual, [&] {
        begin_capture(stream_of(stream), mode);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return call(__func__, usual, [&] {
        *graph = nullptr;
        const auto nodes = end_capture(*stream_of(stream));
        *graph = reinterpret_cast<cudaGraph_t>(new Graph{nodes});
        return cudaSuccess;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call(__func__, without_device, [&] {
        *mode = exchange_thread_mode(*mode);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
    return call(__func__, usual, [&] {
        require(graph && !nodes, cudaErrorInvalidValue);
        *count = reinterpret_cast<const Graph*>(graph)->nodes;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return call(__func__, usual, [&] {
        delete reinterpret_cast<Graph*>(graph);
        return cudaSuccess;
    });
}
