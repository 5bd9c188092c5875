#include "device/cuda/cuda_driver.hpp"

#include <algorithm>
#include <cstdint>
#include <guozhuang/error.hpp>

#include "device/checks.hpp"
#include "device/cuda/copy_kernel.hpp"
#include "device/cuda/cuda_error.hpp"
#include "device/cuda/driver_functions.hpp"
#include "device/cuda/elements_kernel.hpp"
#include "device/cuda/fill_kernel.hpp"
#include "device/cuda/nccl_library.hpp"
#include "device/cuda/reduce_kernel.hpp"

namespace guozhuang::device {
namespace {

const CudaStream& ours(const Stream& stream) {
    const auto* cuda = dynamic_cast<const CudaStream*>(&stream);
    if (!cuda) throw Error(ErrorCode::invalid_argument, "not a CUDA stream");
    return *cuda;
}

void check_allocated(cudaError_t status, std::size_t bytes, const std::string& kind) {
    if (status != cudaSuccess)
        check(status, ("cannot allocate " + std::to_string(bytes) + " bytes of " + kind).c_str());
}

/// "139 GiB"; in MiB if it is less than one.
std::string in_large_units(std::size_t bytes) {
    const bool is_small = bytes >> 30 == 0;
    return std::to_string(bytes >> (is_small ? 20 : 30)) + (is_small ? " MiB" : " GiB");
}

/// The element, repeated.
std::uint64_t pattern_of(std::span<const std::byte> element) {
    std::array<std::byte, sizeof(std::uint64_t)> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = element[i % element.size()];
    return std::bit_cast<std::uint64_t>(bytes);
}

/// The word's address on the device, which equals the host's: memory that CUDA allocates has one
/// address.
CUdeviceptr address_of(const Word& word) {
    return reinterpret_cast<CUdeviceptr>(&word);
}

}  // namespace

CudaDriver::CudaDriver(int device_count) : sharing_(devices_) {
    for (int index = 0; index < device_count; ++index)
        devices_.push_back(std::make_unique<CudaDevice>(index));
}

CudaDevice& CudaDriver::device_at(int index) const {
    check_device(index, device_count());
    return *devices_[static_cast<std::size_t>(index)];
}

void CudaDriver::free_with(cudaError_t (*free)(void*), int device,
                           std::span<std::byte> memory) const noexcept {
    if (memory.empty()) return;
    try {
        const auto here = device_at(device).use();
        free(memory.data());
    } catch (const Error&) {
        // The device has failed before, which was reported, or the process is at its end.
    }
}

std::string CudaDriver::description(int device) const {
    check_device(device, device_count());
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cannot read the properties of the device");
    return std::string(properties.name) + ", " + in_large_units(properties.totalGlobalMem) +
           ", compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor);
}

std::optional<std::size_t> CudaDriver::free_memory(int device) const noexcept {
    try {
        const auto here = device_at(device).use();
        std::size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "cannot tell how much memory is free");
        return free;
    } catch (const Error&) {
        return std::nullopt;
    }
}

void CudaDriver::require_healthy(int device) const {
    device_at(device).require_healthy();
}

void CudaDriver::limit_multiprocessors(int most) noexcept {
    for (const auto& device : devices_) device->limit_processors(most);
}

std::span<std::byte> CudaDriver::allocate(int device, std::size_t bytes) {
    auto& on = device_at(device);
    if (bytes == 0) return {};
    const auto here = on.use();
    void* memory = nullptr;
    const auto status = cudaMalloc(&memory, bytes);
    const auto free = status == cudaErrorMemoryAllocation ? free_memory(device) : std::nullopt;
    check_allocated(
        status, bytes,
        free ? "device memory, of which " + std::to_string(*free) + " are free" : "device memory");
    return {static_cast<std::byte*>(memory), bytes};
}

void CudaDriver::release(int device, std::span<std::byte> memory) noexcept {
    free_with(cudaFree, device, memory);
}

std::span<std::byte> CudaDriver::allocate_pinned(int device, std::size_t bytes) {
    auto& on = device_at(device);
    if (bytes == 0) return {};
    const auto here = on.use();
    void* memory = nullptr;
    check_allocated(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                    bytes, "pinned host memory");
    return {static_cast<std::byte*>(memory), bytes};
}

void CudaDriver::release_pinned(int device, std::span<std::byte> memory) noexcept {
    free_with(cudaFreeHost, device, memory);
}

MemoryLocation CudaDriver::location_of(const void* address) const {
    const RelaxedCapture relaxed;
    CUmemorytype type{};
    unsigned managed = 0;
    int device = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* values[] = {&type, &managed, &device};
    // The runtime's cudaPointerGetAttributes would make a context in a thread that has none.
    const auto status = driver_functions().pointer_attributes(
        std::size(which), which, values, reinterpret_cast<CUdeviceptr>(address));
    if (status == CUDA_ERROR_INVALID_VALUE || status == CUDA_ERROR_INVALID_CONTEXT) return {};
    check(status, "cannot tell where memory lies");
    if (managed) return {MemoryKind::managed};
    if (type == CU_MEMORYTYPE_DEVICE) return {MemoryKind::device, device};
    return {type == CU_MEMORYTYPE_HOST ? MemoryKind::host : MemoryKind::unknown};
}

void CudaDriver::copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) {
    check_same_size(to, from);
    const auto& cuda = ours(stream);
    if (to.empty()) return;
    const auto here = cuda.device().use();
    check(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDefault, cuda.native()),
          "cannot copy");
}

void CudaDriver::copy_all(Stream& stream, std::span<const Copy> copies, const Finish& finish) {
    check_copies(copies, finish);
    const auto& cuda = ours(stream);
    if (copies.empty()) return;
    const auto here = cuda.device().use();
    const auto processors = cuda.device().processors();
    std::vector<Copy> rest(copies.begin(), copies.end());
    // A single copy, or one that fills the device by itself, gains nothing from a kernel. Finished
    // copies need a kernel, which handles one dtype.
    if (!finish.is_identity()) {
        std::ranges::stable_sort(rest, {}, &Copy::dtype);
    } else {
        const auto most = copies.size() == 1 ? 0 : full_grid_bytes(processors);
        std::erase_if(rest, [&](const Copy& each) {
            if (each.to.size() < most) return false;
            copy(stream, each.to, each.from);
            return true;
        });
    }
    check(launch_copies(rest, finish, processors, cuda.native()), "cannot launch copies");
}

void CudaDriver::fill(Stream& stream, std::span<std::byte> memory,
                      std::span<const std::byte> element) {
    check_fill(memory, element);
    const auto& cuda = ours(stream);
    if (memory.empty()) return;
    const auto here = cuda.device().use();
    const bool one_byte = std::ranges::count(element, element[0]) == std::ssize(element);
    check(one_byte
              ? cudaMemsetAsync(memory.data(), std::to_integer<int>(element[0]), memory.size(),
                                cuda.native())
              : launch_fill(memory, pattern_of(element), cuda.device().processors(), cuda.native()),
          "cannot fill memory");
}

void CudaDriver::reduce(Stream& stream, const Reduction& reduction,
                        std::span<const std::span<std::byte>> outputs,
                        std::span<const std::span<const std::byte>> inputs) {
    check_reduction(reduction, outputs, inputs);
    const auto& cuda = ours(stream);
    if (outputs.front().empty()) return;
    const auto here = cuda.device().use();
    check(launch_reduce({reduction, outputs, inputs}, cuda.device().processors(), cuda.native()),
          "cannot launch a reduction");
}

void CudaDriver::sum_of_squares(Stream& stream, DType dtype, std::span<const std::byte> memory,
                                std::span<std::byte> scratch, double& into) {
    check_floating(dtype, memory);
    check_scratch(scratch);
    const auto& cuda = ours(stream);
    const auto here = cuda.device().use();
    const SumLaunch launch{dtype, memory.data(), memory.size() / size_of(dtype),
                           reinterpret_cast<double*>(scratch.data()), &into};
    check(launch_sum_of_squares(launch, cuda.device().processors(), cuda.native()),
          "cannot launch a sum");
}

void CudaDriver::write(Stream& stream, Word& word, std::uint32_t value) {
    const auto& cuda = ours(stream);
    const auto here = cuda.device().use();
    // By default a fence of the whole system comes before the write.
    check(driver_functions().write_value(cuda.native(), address_of(word), value,
                                         CU_STREAM_WRITE_VALUE_DEFAULT),
          "cannot enqueue the write of a word");
}

void CudaDriver::wait(Stream& stream, Word& word, std::uint32_t value) {
    const auto& cuda = ours(stream);
    const auto here = cuda.device().use();
    check(driver_functions().wait_value(cuda.native(), address_of(word), value,
                                        CU_STREAM_WAIT_VALUE_GEQ),
          "cannot enqueue a wait for a word");
}

namespace {

using WordOperation = CUstreamBatchMemOpParams;

/// The parameters of a write begin as those of a wait do.
WordOperation operation_on(const WordValue& word, CUstreamBatchMemOpType operation,
                           unsigned flags) {
    WordOperation all{};
    all.waitValue.operation = operation;
    all.waitValue.address = address_of(*word.word);
    all.waitValue.value = word.value;
    all.waitValue.flags = flags;
    return all;
}

}  // namespace

/// In one call, in this order. By default a fence of the whole system comes before each write.
void CudaDriver::write_then_wait(Stream& stream, std::span<const WordValue> writes,
                                 std::span<const WordValue> waits) {
    const auto& cuda = ours(stream);
    std::vector<WordOperation> all;
    for (const auto& each : writes)
        all.push_back(
            operation_on(each, CU_STREAM_MEM_OP_WRITE_VALUE_32, CU_STREAM_WRITE_VALUE_DEFAULT));
    for (const auto& each : waits)
        all.push_back(operation_on(each, CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_WAIT_VALUE_GEQ));
    if (all.empty()) return;
    const auto here = cuda.device().use();
    check(driver_functions().batch_words(cuda.native(), static_cast<unsigned>(all.size()),
                                         all.data(), 0),
          "cannot enqueue operations on words");
}

std::shared_ptr<const void> CudaDriver::prepare_calls(int device) {
    return std::make_shared<const OnDevice>(device_at(device).primary());
}

std::shared_ptr<Stream> CudaDriver::make_stream(int device) {
    return CudaStream::make(device_at(device));
}

std::shared_ptr<Stream> CudaDriver::wrap(StreamRef stream) {
    if (stream.device.kind != DeviceKind::cuda)
        throw Error(ErrorCode::invalid_argument,
                    "not a CUDA stream, but one of " + std::string(name_of(stream.device.kind)));
    return wrapped_.wrap(device_at(stream.device.index), static_cast<cudaStream_t>(stream.native));
}

OrReason<Nccl*> CudaDriver::nccl(const std::string& wanted) {
    const bool is_limited = device_at(0).processor_limit() != 0;
    return nccl_of(
        wanted, [this](int device) -> CudaDevice& { return device_at(device); }, is_limited);
}

}  // namespace guozhuang::device
