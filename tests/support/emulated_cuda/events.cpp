#include "support/emulated_cuda/events.hpp"

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/handles.hpp"
#include "support/emulated_cuda/streams.hpp"
#include "support/emulated_cuda/submit.hpp"

namespace guozhuang::emulated_cuda {
namespace {

auto& handles() {
    static auto& all = *new Handles<cudaEvent_t, Event>(0x52000000, "a destroyed event is used");
    return all;
}

std::shared_ptr<Event> event_of(cudaEvent_t handle) {
    auto event = handles().find(handle);
    require(event != nullptr, cudaErrorInvalidResourceHandle);
    return event;
}

/// The device's error, or whether the event has been reached.
cudaError_t state_of(Event& event) {
    require(!event.captured(), cudaErrorCapturedEvent);
    if (event.device().broken()) return event.device().error();
    const auto recording = event.recording();
    return !recording || recording->stream->reached(recording->position) ? cudaSuccess
                                                                         : cudaErrorNotReady;
}

/// Makes the stream wait for the event's last recording.
void wait_on(Stream& stream, Event& event) {
    if (const auto point = event.captured()) {
        join_capture(stream, *point);
        return;
    }
    require(capture_status(stream) == cudaStreamCaptureStatusNone, cudaErrorStreamCaptureIsolation);
    if (const auto recording = event.recording())
        stream.enqueue(Stream::Actor::copy, [recording, &device = stream.device()] {
            recording->stream->wait_for(recording->position, device);
        });
}

}  // namespace

void Event::record(const std::shared_ptr<Stream>& stream) {
    require(&stream->device() == &device_, cudaErrorInvalidResourceHandle);
    auto captured = captured_point(*stream);
    std::shared_ptr<Recording> made;
    if (!captured) {
        made = std::make_shared<Recording>();
        made->stream = stream;
        made->position = stream->enqueue(Stream::Actor::copy, [] {});
    }
    const std::lock_guard lock(mutex_);
    captured_ = captured;
    recording_ = made;
}

std::shared_ptr<Recording> Event::recording() {
    const std::lock_guard lock(mutex_);
    return recording_;
}

std::optional<CapturedPoint> Event::captured() {
    const std::lock_guard lock(mutex_);
    return captured_;
}

}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return call(__func__, usual, [&] {
        *event = handles().add(std::make_shared<Event>(current_device()));
        return cudaSuccess;
    });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return call(__func__, usual, [&] {
        require(handles().remove(event) != nullptr, cudaErrorInvalidResourceHandle);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return call(__func__, usual, [&] {
        const auto recorded = event_of(event);
        recorded->record(stream_of(stream));
        return recorded->device().error();
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call(__func__, unsafe_in_capture, [&] { return state_of(*event_of(event)); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return call(__func__, unsafe_in_capture, [&] {
        const auto waited_for = event_of(event);
        if (const auto state = state_of(*waited_for); state != cudaErrorNotReady) return state;
        const auto recording = waited_for->recording();
        recording->stream->wait_for(recording->position, waited_for->device());
        return waited_for->device().error();
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return call(__func__, usual, [&] {
        wait_on(*stream_of(stream), *event_of(event));
        return cudaSuccess;
    });
}
