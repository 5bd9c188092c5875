#pragma once

#include <cuda.h>
#include <optional>

namespace guozhuang::device {

/// Puts the calling thread into relaxed capture mode: in the other modes many of our calls would
/// break a graph that the program captures meanwhile, on this thread or another. The destructor
/// restores the previous mode.
class RelaxedCapture {
public:
    RelaxedCapture();
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Makes a device current for the calling thread, in relaxed capture mode. The destructor restores
/// the context that was current before, or none; setting device 0 instead would create a context in
/// a thread that had none. CudaDevice::use() makes an OnDevice. Inside another OnDevice for the
/// same device it makes no CUDA calls.
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

/// The calling thread's context, or null.
CUcontext current_context();

}  // namespace guozhuang::device
