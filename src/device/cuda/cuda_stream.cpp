#include "device/cuda/cuda_stream.hpp"

#include <guozhuang/error.hpp>
#include <utility>

#include "device/cuda/cuda_error.hpp"

namespace guozhuang::device {
namespace {

void CUDART_CB run_and_drop(void* work) {
    const std::unique_ptr<std::function<void()>> ours(static_cast<std::function<void()>*>(work));
    (*ours)();
}

}  // namespace

CudaEvent::CudaEvent(int device, cudaStream_t stream) : device_(device) {
    const OnDevice here(device_);
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cannot make an event");
    if (const auto status = cudaEventRecord(event_, stream); status != cudaSuccess) {
        cudaEventDestroy(event_);  // no destructor runs after a constructor that throws
        check(status, "cannot record an event");
    }
}

// Destructors ignore errors: they come from a device that has failed before, which was reported, or
// from a process that is ending.
CudaEvent::~CudaEvent() {
    try {
        const OnDevice here(device_);
        cudaEventDestroy(event_);
    } catch (const Error&) {
    }
}

bool CudaEvent::done() const {
    const OnDevice here(device_);
    const auto status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "work before an event failed");
    return true;
}

std::shared_ptr<CudaStream> CudaStream::make(int device) {
    const OnDevice here(device);
    int least = 0, greatest = 0;
    cudaStream_t stream = nullptr;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
          "cannot read the priorities of streams");
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
          "cannot make a stream");
    return std::shared_ptr<CudaStream>(new CudaStream(device, stream, true));
}

std::shared_ptr<CudaStream> CudaStream::wrap(int device, cudaStream_t stream) {
    return std::shared_ptr<CudaStream>(new CudaStream(device, stream, false));
}

CudaStream::~CudaStream() {
    if (!owned_) return;
    try {
        const OnDevice here(device_);
        cudaStreamDestroy(stream_);
    } catch (const Error&) {
    }
}

void CudaStream::wait(const std::shared_ptr<const Event>& event) {
    const auto* ours = dynamic_cast<const CudaEvent*>(event.get());
    if (!ours)
        throw Error(ErrorCode::invalid_argument,
                    "a CUDA stream waits only for events of CUDA streams");
    const OnDevice here(device_);
    check(cudaStreamWaitEvent(stream_, ours->native(), cudaEventWaitDefault),
          "cannot wait for an event");
}

void CudaStream::launch(std::function<void()> work) {
    const OnDevice here(device_);
    auto ours = std::make_unique<std::function<void()>>(std::move(work));
    check(cudaLaunchHostFunc(stream_, run_and_drop, ours.get()), "cannot launch a host function");
    static_cast<void>(ours.release());  // run_and_drop owns it now
}

std::shared_ptr<Event> CudaStream::record() {
    return std::make_shared<CudaEvent>(device_, stream_);
}

}  // namespace guozhuang::device
