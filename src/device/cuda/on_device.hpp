#pragma once

#include <cuda.h>
#include <optional>

namespace guozhuang::device {

/// Puts the calling thread into relaxed capture mode: in the other modes many calls of ours would
/// break a graph that the program captures meanwhile, on this thread or on another one. In the end
/// the thread has the mode that it had.
class RelaxedCapture {
public:
    RelaxedCapture();
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Makes a device current for the calling thread, in relaxed capture mode, and in the end the
/// context that was current before, or none. Setting device 0 again would instead create a context
/// on it in a thread that had none. CudaDevice::use() makes one. Within another one for the same
/// device it calls nothing of CUDA's.
class OnDevice {
public:
    /// With the device's primary context, which is known.
    explicit OnDevice(CUcontext primary);
    /// Makes the device's primary context if there is none yet.
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

private:
    std::optional<RelaxedCapture> relaxed_;  ///< none within another one
    CUcontext before_ = nullptr;
    CUcontext outer_ = nullptr;  ///< that of the enclosing scope
    bool switched_ = false;
};

/// The calling thread's, or null.
CUcontext current_context();

}  // namespace guozhuang::device
