#include "device/cuda/on_device.hpp"

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_error.hpp"
#include "device/cuda/driver_functions.hpp"

namespace guozhuang::device {

// Destructors ignore errors: they come from a device that has failed before, which was reported, or
// from a process that is ending.

RelaxedCapture::RelaxedCapture() {
    check(driver_functions().exchange_capture_mode(&mode_), "cannot set the capture mode");
}

RelaxedCapture::~RelaxedCapture() {
    driver_functions().exchange_capture_mode(&mode_);
}

OnDevice::OnDevice(CUcontext primary) : before_(current_context()), switched_(before_ != primary) {
    if (switched_) check(driver_functions().set_context(primary), "cannot use the device");
}

OnDevice::OnDevice(int device) : before_(current_context()), switched_(true) {
    check(cudaSetDevice(device), "cannot use the device");
}

OnDevice::~OnDevice() {
    if (switched_) driver_functions().set_context(before_);
}

CUcontext current_context() {
    CUcontext current = nullptr;
    check(driver_functions().get_context(&current), "cannot read the current context");
    return current;
}

}  // namespace guozhuang::device
