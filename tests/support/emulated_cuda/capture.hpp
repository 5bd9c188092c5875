#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <optional>

namespace guozhuang::emulated_cuda {

class Stream;

/// A point in a stream that is being captured: the meaning of an event recorded there.
struct CapturedPoint {
    std::uint64_t capture = 0;
    const Stream* stream = nullptr;
    std::uint64_t nodes = 0;  ///< of that stream, up to the point
};

/// Before a call that is unsafe while streams are captured: if the calling thread's mode and the
/// captures under way forbid it, invalidates those and returns true.
bool invalidate_captures();
/// The same for a stream that is itself captured, whatever the modes.
bool invalidate_capture_of(const Stream& stream);

/// Counts a node if the stream is captured; returns false if it is not. Throws Refusal if the node
/// cannot be recorded.
bool record_node(Stream& stream);
/// The point that an event recorded now stands for, if the stream is captured.
std::optional<CapturedPoint> captured_point(Stream& stream);
/// Makes the stream wait for the point, so that it joins the capture.
void join_capture(Stream& stream, const CapturedPoint& point);

/// Whether a legacy stream is ordered with a stream that is being captured, so that its own state
/// cannot be told.
bool would_capture_implicitly(const Stream& legacy);
cudaStreamCaptureStatus capture_status(const Stream& stream);
void begin_capture(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode);
/// Returns the number of nodes.
std::uint64_t end_capture(const Stream& stream);
cudaStreamCaptureMode exchange_thread_mode(cudaStreamCaptureMode mode) noexcept;

}  // namespace guozhuang::emulated_cuda
