#pragma once

#include <array>
#include <cuda_runtime_api.h>

namespace guozhuang::emulated_cuda {

class Device;

/// The device's UUID, the same in all processes of the user.
std::array<unsigned char, 16> uuid_of(const Device& device);
/// The UUID of the GPU; the device may be a MIG slice of it.
std::array<unsigned char, 16> uuid_of_gpu(const Device& device);
/// MIG slices of one GPU have the same PCI bus.
int pci_bus_of(const Device& device);

}  // namespace guozhuang::emulated_cuda

/// Properties that an emulated device reports.
namespace guozhuang::emulated_cuda::device_facts {

inline constexpr int major = 9, minor = 0;
inline constexpr int multiprocessors = 4;
inline constexpr int warp_threads = 32;
inline constexpr int threads_per_block = 1024;
/// Every kernel's, limited by its registers rather than by its threads.
inline constexpr int blocks_per_multiprocessor = 5, registers_per_thread = 48;
inline constexpr int copy_engines = 2;
/// So it refuses CU_STREAM_WAIT_VALUE_FLUSH, as platforms do that have no hardware for it.
inline constexpr bool flushes_remote_writes = false;

struct Attribute {
    cudaDeviceAttr attribute;
    int value;
};

inline constexpr auto stream_memory_operations = static_cast<cudaDeviceAttr>(94);
inline constexpr auto stream_wait_value_nor = static_cast<cudaDeviceAttr>(123);

inline constexpr Attribute attributes[] = {
    {cudaDevAttrMultiProcessorCount, multiprocessors},
    {cudaDevAttrComputeCapabilityMajor, major},
    {cudaDevAttrComputeCapabilityMinor, minor},
    {cudaDevAttrWarpSize, warp_threads},
    {cudaDevAttrMaxThreadsPerBlock, threads_per_block},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 << 10},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrMemoryClockRate, 1000000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrClockRate, 1000000},
    {cudaDevAttrAsyncEngineCount, copy_engines},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrIntegrated, 0},
    {cudaDevAttrComputeMode, 0},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrConcurrentManagedAccess, 0},
    {cudaDevAttrPageableMemoryAccess, 0},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrHostNativeAtomicSupported, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {cudaDevAttrCooperativeLaunch, 0},
    {cudaDevAttrClusterLaunch, 0},
    {cudaDevAttrIpcEventSupport, 0},
    {cudaDevAttrMpsEnabled, 0},
    {cudaDevAttrPciDomainId, 0},
    {cudaDevAttrPciDeviceId, 0},
    {cudaDevAttrGPUDirectRDMASupported, 0},
    {cudaDevAttrCanFlushRemoteWrites, flushes_remote_writes},
    {stream_memory_operations, 1},
    {stream_wait_value_nor, 1},
};

}  // namespace guozhuang::emulated_cuda::device_facts
