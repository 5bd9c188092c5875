// Devices, errors and versions.

#include <array>
#include <cstring>
#include <string>
#include <unistd.h>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/configuration.hpp"
#include "support/emulated_cuda/device_facts.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

Device& device_of(int index) {
    auto* device = device_or_null(index);
    require(device != nullptr, cudaErrorInvalidDevice);
    return *device;
}

struct ErrorText {
    cudaError_t error;
    const char* name;
    const char* text;
};

constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed",
     "mapping of buffer object failed"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText& text_of(cudaError_t error) {
    static constexpr ErrorText other{cudaErrorUnknown, "an error of CUDA's",
                                     "an error that the emulation has no text for"};
    for (const auto& each : error_texts)
        if (each.error == error) return each;
    return other;
}

}  // namespace

std::array<unsigned char, 16> uuid_of(const Device& device) {
    std::array<unsigned char, 16> bytes{'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};
    const auto user = static_cast<unsigned>(::getuid());
    std::memcpy(&bytes[8], &user, sizeof user);
    bytes[15] = static_cast<unsigned char>(device.physical());
    return bytes;
}

std::array<unsigned char, 16> uuid_of_gpu(const Device& device) {
    auto bytes = uuid_of(device);
    if (configuration().is_mig) bytes[15] = 0xff;
    return bytes;
}

int pci_bus_of(const Device& device) {
    return configuration().is_mig ? 1 : device.physical() + 1;
}

}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

cudaError_t cudaDriverGetVersion(int* version) {
    return call(__func__, without_device, [&] {
        *version = configuration().driver;
        return cudaSuccess;
    });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    return call(__func__, without_device, [&] {
        *version = CUDART_VERSION;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceCount(int* count) {
    return call(__func__, without_device, [&] {
        *count = 0;
        if (const auto problem = problem_with_driver(); problem != cudaSuccess) return problem;
        *count = static_cast<int>(devices().size());
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    return call(__func__, usual, [&] {
        const auto& device = device_of(index);
        *properties = {};
        std::strcpy(properties->name, "Emulated GPU");
        std::memcpy(&properties->uuid, uuid_of(device).data(), sizeof properties->uuid);
        properties->totalGlobalMem = Device::total();
        properties->major = device_facts::major;
        properties->minor = device_facts::minor;
        properties->multiProcessorCount = device_facts::multiprocessors;
        properties->warpSize = device_facts::warp_threads;
        properties->maxThreadsPerBlock = device_facts::threads_per_block;
        properties->pciBusID = pci_bus_of(device);
        properties->unifiedAddressing = 1;
        properties->canMapHostMemory = 1;
        properties->asyncEngineCount = device_facts::copy_engines;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
    return call(__func__, usual, [&] {
        const auto& device = device_of(index);
        if (attribute == cudaDevAttrPciBusId) {
            *value = pci_bus_of(device);
            return cudaSuccess;
        }
        for (const auto& each : device_facts::attributes) {
            if (each.attribute != attribute) continue;
            *value = each.value;
            return cudaSuccess;
        }
        break_rule("the emulation has no value for attribute " + std::to_string(attribute) +
                   " of a device");
    });
}

cudaError_t cudaSetDevice(int index) {
    return call(__func__, without_device, [&] {
        if (const auto problem = problem_with_driver(); problem != cudaSuccess) return problem;
        auto& device = device_of(index);
        set_current_device(&device);
        return device.error();
    });
}

cudaError_t cudaGetDevice(int* index) {
    return call(__func__, usual, [&] {
        const auto* device = current_device_or_null();  // the question makes no context
        *index = device ? device->index() : 0;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int index, int peer) {
    return call(__func__, usual, [&] {
        *can = are_peers(device_of(index).physical(), device_of(peer).physical());
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return call(__func__, usual, [&] {
        auto& other = device_of(peer);
        require(flags == 0, cudaErrorInvalidValue);
        require(&other != &current_device(), cudaErrorInvalidDevice);
        require(are_peers(current_device().physical(), other.physical()),
                cudaErrorPeerAccessUnsupported);
        require(current_device().enable_peer_of(other.physical()),
                cudaErrorPeerAccessAlreadyEnabled);
        return cudaSuccess;
    });
}

cudaError_t cudaGetLastError() {
    auto last = cudaSuccess;
    const auto refused = call(__func__, about_errors, [&] {
        last = last_error();
        forget_last_error();
        return cudaSuccess;
    });
    return refused != cudaSuccess ? refused : last;
}

const char* cudaGetErrorName(cudaError_t error) {
    return text_of(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
    return text_of(error).text;
}
