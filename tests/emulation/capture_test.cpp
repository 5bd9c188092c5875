// Calls that are allowed while a stream is captured, and from which thread.

#include <cuda_runtime_api.h>
#include <thread>

#include "emulation/cuda_objects.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang::test;

namespace {

struct Captured {
    TestStream stream;
    explicit Captured(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
        expect(cudaStreamBeginCapture(stream.native, mode), "no capture");
    }
    ~Captured() {
        cudaGraph_t graph = nullptr;
        cudaStreamEndCapture(stream.native, &graph);
        if (graph) cudaGraphDestroy(graph);
        cudaGetLastError();
    }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;

    cudaStreamCaptureStatus status() const {
        cudaStreamCaptureStatus status{};
        expect(cudaStreamIsCapturing(stream.native, &status), "no status");
        return status;
    }
    bool is_active() const { return status() == cudaStreamCaptureStatusActive; }
};

/// Makes the call on another thread and returns its status.
template <class Call>
cudaError_t elsewhere(Call call) {
    auto status = cudaErrorUnknown;
    std::thread([&] { status = call(); }).join();
    return status;
}

template <class Call>
cudaError_t relaxed(Call call) {
    auto mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    const auto status = call();
    cudaThreadExchangeStreamCaptureMode(&mode);
    return status;
}

cudaError_t allocate_and_free() {
    void* memory = nullptr;
    const auto status = cudaMalloc(&memory, 64);
    return status != cudaSuccess ? status : cudaFree(memory);
}

}  // namespace

TEST_CASE("a captured stream records nodes and runs nothing") {
    const TestStream stream;
    auto* word = pinned_memory<std::uint32_t>(1);
    *word = 0;
    REQUIRE(cudaStreamBeginCapture(stream.native, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cuStreamWriteValue32(stream.native, address_of(word), 1, 0) == CUDA_SUCCESS);
    CHECK(cuStreamWriteValue32(stream.native, address_of(word), 2, 0) == CUDA_SUCCESS);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream.native, &graph) == cudaSuccess);
    std::size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
    CHECK(nodes == 2);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream.native) == cudaSuccess);
    CHECK(*word == 0);
    CHECK(cudaFreeHost(word) == cudaSuccess);
}

TEST_CASE("unsafe calls of any thread invalidate a global capture") {
    const TestStream other;
    const TestEvent event;
    SECTION("an allocation") {
        const Captured capture;
        CHECK(allocate_and_free() == cudaErrorStreamCaptureUnsupported);
        CHECK(capture.status() == cudaStreamCaptureStatusInvalidated);
    }
    SECTION("an event query of another thread") {
        const Captured capture;
        CHECK(elsewhere([&] { return cudaEventQuery(event.native); }) ==
              cudaErrorStreamCaptureUnsupported);
        CHECK(capture.status() == cudaStreamCaptureStatusInvalidated);
    }
    SECTION("another stream's query") {
        const Captured capture;
        CHECK(cudaStreamQuery(other.native) == cudaErrorStreamCaptureUnsupported);
        CHECK(capture.status() == cudaStreamCaptureStatusInvalidated);
    }
    SECTION("not those of a relaxed thread") {
        const Captured capture;
        CHECK(elsewhere([&] { return relaxed(allocate_and_free); }) == cudaSuccess);
        CHECK(relaxed([&] { return cudaEventQuery(event.native); }) == cudaSuccess);
        CHECK(capture.is_active());
    }
    SECTION("not those of other threads, if it is its thread's alone") {
        const Captured capture(cudaStreamCaptureModeThreadLocal);
        CHECK(elsewhere(allocate_and_free) == cudaSuccess);
        CHECK(capture.is_active());
        CHECK(allocate_and_free() == cudaErrorStreamCaptureUnsupported);
    }
    SECTION("none, if it is relaxed, but on the stream itself") {
        const Captured capture(cudaStreamCaptureModeRelaxed);
        CHECK(allocate_and_free() == cudaSuccess);
        CHECK(capture.is_active());
        CHECK(cudaStreamSynchronize(capture.stream.native) == cudaErrorStreamCaptureUnsupported);
        CHECK(capture.status() == cudaStreamCaptureStatusInvalidated);
    }
    cudaGetLastError();
}

TEST_CASE("an invalidated capture ends with an error, and then is over") {
    const TestStream stream;
    REQUIRE(cudaStreamBeginCapture(stream.native, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(allocate_and_free() == cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream.native, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    CHECK(allocate_and_free() == cudaSuccess);
    cudaGetLastError();
}

TEST_CASE("events lead a capture to other streams, which must be joined") {
    const TestStream origin, branch;
    const TestEvent forked, joined, outside;
    auto* memory = device_memory<char>(64);
    const auto capture = [&](bool join) {
        expect(cudaStreamBeginCapture(origin.native, cudaStreamCaptureModeGlobal), "no capture");
        expect(cudaEventRecord(forked.native, origin.native), "no event");
        expect(cudaStreamWaitEvent(branch.native, forked.native, 0), "no fork");
        expect(cudaMemsetAsync(memory, 0, 64, branch.native), "no node");
        expect(cudaEventRecord(joined.native, branch.native), "no event");
        if (join) expect(cudaStreamWaitEvent(origin.native, joined.native, 0), "no join");
        cudaGraph_t graph = nullptr;
        const auto status = cudaStreamEndCapture(origin.native, &graph);
        if (graph) cudaGraphDestroy(graph);
        return status;
    };
    CHECK(capture(true) == cudaSuccess);
    CHECK(capture(false) == cudaErrorStreamCaptureUnjoined);
    CHECK(cudaEventQuery(joined.native) == cudaErrorCapturedEvent);
    REQUIRE(cudaStreamBeginCapture(origin.native, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaEventRecord(outside.native, branch.native) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(origin.native, outside.native, 0) == cudaErrorStreamCaptureIsolation);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(origin.native, &graph) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
    cudaGetLastError();
}

TEST_CASE("the legacy stream cannot be used beside the capture of a blocking one") {
    const TestStream blocking(cudaStreamDefault);
    auto* memory = device_memory<char>(64);
    REQUIRE(cudaStreamBeginCapture(blocking.native, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory, 0, 64, nullptr) == cudaErrorStreamCaptureImplicit);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(blocking.native, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaFree(memory) == cudaSuccess);
    cudaGetLastError();
}
