#include <cuda_runtime_api.h>
#include <exception>
#include <string>
#include <string_view>

#include "device/cuda/cuda_driver.hpp"
#include "device/plugin.hpp"

namespace guozhuang::device {
namespace {

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

OrReason<Driver*> look_for_devices() {
    int version = 0, devices = 0;
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
        return {.reason = "no NVIDIA driver"};
    const auto status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorInsufficientDriver)
        return {.reason = "NVIDIA driver too old: it supports CUDA " + version_text(version) +
                          ", this build needs " + version_text(CUDART_VERSION)};
    if (status == cudaErrorNoDevice || (status == cudaSuccess && devices == 0))
        return {.reason = "no CUDA device"};
    if (status != cudaSuccess)
        return {.reason = std::string("CUDA failed: ") + cudaGetErrorString(status)};
    return {.value = new CudaDriver(devices)};
}

/// One for the process, as CUDA is. The driver is never destroyed, since streams may outlive static
/// destruction, and the plugin is never unloaded.
OrReason<Driver*> look_without_throwing() noexcept {
    try {
        return look_for_devices();
    } catch (const std::exception& error) {
        return {.reason = std::string("CUDA failed: ") + error.what()};
    }
}

}  // namespace
}  // namespace guozhuang::device

extern "C" GUOZHUANG_API guozhuang::device::CudaPlugin guozhuang_cuda_plugin(
    const char* build_id) noexcept {
    if (std::string_view(build_id) != GUOZHUANG_BUILD_ID)
        return {.driver = nullptr, .reason = "build mismatch: the plugin is " GUOZHUANG_BUILD_ID};
    static const auto& answer = *new auto(guozhuang::device::look_without_throwing());
    return {.driver = answer.value, .reason = answer.reason.c_str()};
}
