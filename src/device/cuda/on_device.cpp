#include "device/cuda/on_device.hpp"

#include <cuda_runtime_api.h>
#include <utility>

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

namespace {

/// The context of the OnDevice that the thread is in, or null.
thread_local CUcontext chosen = nullptr;

}  // namespace

OnDevice::OnDevice(CUcontext primary) {
    if (chosen == primary) return;
    relaxed_.emplace();
    before_ = current_context();
    switched_ = before_ != primary;
    if (switched_) check(driver_functions().set_context(primary), "cannot use the device");
    outer_ = std::exchange(chosen, primary);
}

OnDevice::OnDevice(int device) {
    relaxed_.emplace();
    before_ = current_context();
    switched_ = true;
    check(cudaSetDevice(device), "cannot use the device");
    outer_ = std::exchange(chosen, nullptr);
}

OnDevice::~OnDevice() {
    if (!relaxed_) return;
    chosen = outer_;
    if (switched_) driver_functions().set_context(before_);
}

CUcontext current_context() {
    CUcontext current = nullptr;
    check(driver_functions().get_context(&current), "cannot read the current context");
    return current;
}

}  // namespace guozhuang::device
