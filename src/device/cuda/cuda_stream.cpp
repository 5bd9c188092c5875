#include "device/cuda/cuda_stream.hpp"

#include <cstdint>
#include <guozhuang/error.hpp>
#include <string>

#include "device/cuda/cuda_error.hpp"
#include "device/cuda/driver_functions.hpp"

namespace guozhuang::device {
namespace {

/// Checks before anything is enqueued: a call that cannot be captured would invalidate the user's
/// graph.
void require_not_captured(cudaStream_t stream) {
    auto capture = cudaStreamCaptureStatusNone;
    const auto status = cudaStreamIsCapturing(stream, &capture);
    // The legacy default stream is unusable while a stream that synchronises with it is captured.
    const bool implicit = status == cudaErrorStreamCaptureImplicit;
    if (!implicit) check(status, "cannot tell whether the stream is being captured");
    if (implicit || capture != cudaStreamCaptureStatusNone)
        throw Error(ErrorCode::invalid_argument,
                    "the stream is being captured into a graph; collectives cannot be captured: "
                    "submit them outside");
}

/// The default streams have no context: they belong to the current one, which is the device's
/// whenever they are used here.
bool is_default_stream(cudaStream_t stream) {
    return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

int device_of(CUcontext context, CUcontext current) {
    CUdevice device = -1;
    check(driver_functions().set_context(context), "cannot look at the stream's context");
    const auto status = driver_functions().device_of_context(&device);
    driver_functions().set_context(current);
    check(status, "cannot tell the stream's device");
    return device;
}

/// Throws for a stream of another device, or of another context of this one, in which the plugin's
/// events and kernels are unknown. The device is current.
void require_of(CudaDevice& device, cudaStream_t stream) {
    CUcontext context = nullptr;
    const auto status = driver_functions().context_of_stream(stream, &context);
    if (status == CUDA_ERROR_INVALID_HANDLE || status == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        throw Error(ErrorCode::invalid_argument, "the stream is none of CUDA's");
    check(status, "cannot tell the stream's context");
    if (context == device.primary()) return;
    const auto given = std::to_string(device.index()),
               actual = std::to_string(device_of(context, device.primary()));
    if (given != actual)
        throw Error(ErrorCode::invalid_argument, "the stream is of CUDA device " + actual +
                                                     ", but was given as one of device " + given);
    throw Error(ErrorCode::invalid_argument,
                "the stream is of another context of CUDA device " + given +
                    " than its primary context, which is the one that collectives run in: give a "
                    "stream that was made by CUDA's runtime");
}

}  // namespace

bool CudaEvent::done() const {
    const auto here = device_.use();
    const auto status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "work before an event failed");
    return true;
}

std::shared_ptr<CudaStream> CudaStream::make(CudaDevice& device) {
    const auto here = device.use();
    int least = 0, greatest = 0;
    cudaStream_t stream = nullptr;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
          "cannot read the priorities of streams");
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
          "cannot make a stream");
    return std::make_shared<CudaStream>(device, stream, Owner::plugin);
}

CudaStream::~CudaStream() {
    if (owner_ == Owner::user) return;
    try {
        const auto here = device_.use();
        cudaStreamDestroy(stream_);
    } catch (const Error&) {
        // The device has failed before, which was reported, or the process is at its end.
    }
}

void CudaStream::wait(const std::shared_ptr<const Event>& event) {
    const auto* ours = dynamic_cast<const CudaEvent*>(event.get());
    if (!ours)
        throw Error(ErrorCode::invalid_argument,
                    "a CUDA stream waits only for events of CUDA streams");
    const auto here = device_.use();
    if (owner_ == Owner::user) require_not_captured(stream_);
    check(cudaStreamWaitEvent(stream_, ours->native(), cudaEventWaitDefault),
          "cannot wait for an event");
}

std::shared_ptr<Event> CudaStream::record() {
    const auto here = device_.use();
    if (owner_ == Owner::user) require_not_captured(stream_);
    auto event = std::make_shared<CudaEvent>(device_);
    check(cudaEventRecord(event->native(), stream_), "cannot record an event");
    return event;
}

std::shared_ptr<CudaStream> WrappedStreams::wrap(CudaDevice& device, cudaStream_t stream) {
    {
        const auto here = device.use();
        if (!is_default_stream(stream)) require_of(device, stream);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(stream);
    const base::Lock lock(mutex_);
    // Streams are objects of some hundred bytes, so their lowest address bits hardly differ.
    auto& slot = recent_[(address ^ address >> 6 ^ address >> 12) % recent_.size()];
    if (!slot || &slot->device() != &device || slot->native() != stream)
        slot = std::make_shared<CudaStream>(device, stream, CudaStream::Owner::user);
    return slot;
}

}  // namespace guozhuang::device
