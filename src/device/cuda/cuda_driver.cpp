#include "device/cuda/cuda_driver.hpp"

#include <guozhuang/error.hpp>

#include "device/checks.hpp"
#include "device/cuda/cuda_error.hpp"
#include "device/cuda/cuda_stream.hpp"
#include "device/cuda/reduce_kernel.hpp"

namespace guozhuang::device {
namespace {

const CudaStream& ours(const Stream& stream) {
    const auto* cuda = dynamic_cast<const CudaStream*>(&stream);
    if (!cuda) throw Error(ErrorCode::invalid_argument, "not a CUDA stream");
    return *cuda;
}

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "cannot read an attribute of the device");
    return value;
}

}  // namespace

CudaDriver::CudaDriver(int device_count) {
    for (int device = 0; device < device_count; ++device)
        processors_.push_back(attribute(cudaDevAttrMultiProcessorCount, device));
}

std::string CudaDriver::description(int device) const {
    check_device(device, device_count());
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cannot read the properties of the device");
    return std::string(properties.name) + ", " + std::to_string(properties.totalGlobalMem >> 30) +
           " GiB, compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor);
}

std::span<std::byte> CudaDriver::allocate(int device, std::size_t bytes) {
    check_device(device, device_count());
    if (bytes == 0) return {};
    const OnDevice here(device);
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes),
          ("cannot allocate " + std::to_string(bytes) + " bytes").c_str());
    return {static_cast<std::byte*>(memory), bytes};
}

void CudaDriver::release(int device, std::span<std::byte> memory) noexcept {
    if (memory.empty()) return;
    try {
        const OnDevice here(device);
        cudaFree(memory.data());
    } catch (const Error&) {
        // The device has failed before, which was reported, or the process is at its end.
    }
}

void CudaDriver::copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) {
    check_same_size(to, from);
    const auto& cuda = ours(stream);
    if (to.empty()) return;
    const OnDevice here(cuda.device());
    check(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDefault, cuda.native()),
          "cannot copy");
}

void CudaDriver::reduce(Stream& stream, ReduceOp op, DType dtype, std::span<std::byte> into,
                        std::span<const std::byte> other) {
    check_reduction(op, dtype, into, other);
    const auto& cuda = ours(stream);
    if (into.empty()) return;
    const OnDevice here(cuda.device());
    const ReduceLaunch launch{op, dtype, into.data(), other.data(), into.size() / size_of(dtype)};
    check(
        launch_reduce(launch, processors_[static_cast<std::size_t>(cuda.device())], cuda.native()),
        "cannot launch a reduction");
}

std::shared_ptr<Stream> CudaDriver::make_stream(int device) {
    check_device(device, device_count());
    return CudaStream::make(device);
}

std::shared_ptr<Stream> CudaDriver::wrap(StreamRef stream) {
    if (stream.device.kind != DeviceKind::cuda)
        throw Error(ErrorCode::invalid_argument,
                    "not a CUDA stream, but one of " + std::string(name_of(stream.device.kind)));
    check_device(stream.device.index, device_count());
    return CudaStream::wrap(stream.device.index, static_cast<cudaStream_t>(stream.native));
}

}  // namespace guozhuang::device
