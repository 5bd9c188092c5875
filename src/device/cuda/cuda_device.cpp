#include "device/cuda/cuda_device.hpp"

#include <guozhuang/error.hpp>
#include <string>

#include "device/cuda/copy_kernel.hpp"
#include "device/cuda/cuda_error.hpp"
#include "device/cuda/elements_kernel.hpp"
#include "device/cuda/fill_kernel.hpp"
#include "device/cuda/reduce_kernel.hpp"

namespace guozhuang::device {
namespace {

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "cannot read an attribute of the device");
    return value;
}

/// Whether the error means that the plugin has no code for the device, nor PTX that the NVIDIA
/// driver could translate.
bool means_no_code(cudaError_t status) {
    return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
           status == cudaErrorUnsupportedPtxVersion;
}

void load_kernels(int device, Occupancy& occupancy) {
    auto status = load_fill_kernel(occupancy);
    if (status == cudaSuccess) status = load_reduce_kernels(occupancy);
    if (status == cudaSuccess) status = load_elements_kernels(occupancy);
    if (status == cudaSuccess) status = load_copy_kernels(occupancy);
    if (!means_no_code(status)) return check(status, "cannot load the kernels");
    const auto major = std::to_string(attribute(cudaDevAttrComputeCapabilityMajor, device)),
               minor = std::to_string(attribute(cudaDevAttrComputeCapabilityMinor, device));
    throw Error(ErrorCode::unavailable,
                "built without code for compute capability " + major + "." + minor +
                    ": build with GUOZHUANG_CUDA_ARCHITECTURES=" + major + minor);
}

}  // namespace

CudaDevice::CudaDevice(int index)
    : index_(index), processors_(attribute(cudaDevAttrMultiProcessorCount, index)) {}

OnDevice CudaDevice::use() {
    return OnDevice(primary());
}

CUcontext CudaDevice::primary() {
    if (const auto known = primary_.load(std::memory_order_acquire)) return known;
    const base::Lock lock(mutex_);
    if (!primary_.load(std::memory_order_relaxed)) prepare();
    return primary_.load(std::memory_order_relaxed);
}

void CudaDevice::prepare() {
    const OnDevice here(index_);
    load_kernels(index_, occupancy_);
    if (!probing_)
        check(cudaStreamCreateWithFlags(&probing_, cudaStreamNonBlocking), "cannot make a stream");
    if (!probe_)
        check(cudaEventCreateWithFlags(&probe_, cudaEventDisableTiming), "cannot make an event");
    primary_.store(current_context(), std::memory_order_release);
}

void CudaDevice::require_healthy() {
    if (!primary_.load(std::memory_order_acquire)) return;
    const auto here = use();
    const base::Lock lock(mutex_);
    // Queries work in flight, because CUDA asks the device about it, but may answer for an idle
    // stream without asking. At most one probe is in flight, so that recording one never waits for
    // room.
    const auto status = cudaEventQuery(probe_);
    if (status == cudaErrorNotReady) return;
    const auto failed = "device " + std::to_string(index_) + " has failed";
    check(status, failed.c_str());
    check(cudaEventRecord(probe_, probing_), failed.c_str());
}

}  // namespace guozhuang::device
