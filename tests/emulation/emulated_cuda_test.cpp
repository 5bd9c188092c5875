// The emulated runtime by the functions of CUDA: what the plugin on it, plugin_test.cpp, does not
// show of streams, memory, words and kernels.

#include "support/emulated_cuda/kernel.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "emulation/cuda_objects.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang::test;

namespace {

__global__ void add_number(int* values, unsigned count, int number) {
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] += number;
}

cudaError_t launch_add(int* values, unsigned count, int number, cudaStream_t stream) {
    void* arguments[] = {&values, &count, &number};
    return cudaLaunchKernel(add_number, dim3((count + 31) / 32), dim3(32), arguments, 0, stream);
}

}  // namespace

TEST_CASE("the legacy default stream waits for blocking streams, and they for it") {
    const TestStream blocking(cudaStreamDefault), independent;
    const Gate gate;
    auto* memory = device_memory<int>(1);
    gate.hold(blocking.native);
    CHECK(cudaMemsetAsync(memory, 0, sizeof(int), nullptr) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory, 0, sizeof(int), independent.native) == cudaSuccess);
    CHECK(cudaStreamSynchronize(independent.native) == cudaSuccess);
    CHECK(cudaStreamQuery(nullptr) == cudaErrorNotReady);
    const TestStream later(cudaStreamDefault);
    CHECK(cudaMemsetAsync(memory, 0, sizeof(int), later.native) == cudaSuccess);
    let_streams_run();
    CHECK(cudaStreamQuery(later.native) == cudaErrorNotReady);
    gate.open();
    CHECK(cudaStreamSynchronize(later.native) == cudaSuccess);
    CHECK(cudaStreamQuery(nullptr) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("each thread has a default stream of its own") {
    const Gate gate;
    gate.hold(cudaStreamPerThread);
    CHECK(cudaStreamQuery(cudaStreamPerThread) == cudaErrorNotReady);
    auto other = cudaErrorUnknown;
    std::thread([&] { other = cudaStreamSynchronize(cudaStreamPerThread); }).join();
    CHECK(other == cudaSuccess);
    gate.open();
    CHECK(cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess);
}

TEST_CASE("kernels and copies run in stream order, on arguments as they were") {
    const TestStream stream;
    constexpr unsigned count = 1001;
    std::vector<int> values(count);
    auto* memory = device_memory<int>(count);
    REQUIRE(cudaMemsetAsync(memory, 0, count * sizeof(int), stream.native) == cudaSuccess);
    for (int number = 1; number <= 4; ++number)
        REQUIRE(launch_add(memory, count, number, stream.native) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(values.data(), memory, count * sizeof(int), cudaMemcpyDefault,
                            stream.native) == cudaSuccess);
    CHECK(values == std::vector<int>(count, 10));  // pageable memory: the call has waited
    const int zero = 0;
    CHECK(cudaMemcpy(memory + 7, &zero, sizeof zero, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(values.data(), memory, count * sizeof(int), cudaMemcpyDeviceToHost) ==
          cudaSuccess);
    CHECK(values[7] == 0);
    CHECK(values[8] == 10);
    CHECK(launch_add(memory, 0, 1, stream.native) == cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("the first launch of a kernel waits for the device, unless it has been loaded") {
    const TestStream held, free;
    cudaFuncAttributes attributes{};
    REQUIRE(cudaFuncGetAttributes(&attributes, add_number) == cudaSuccess);
    CHECK(attributes.maxThreadsPerBlock == 1024);
    const Gate gate;
    gate.hold(held.native);
    auto* memory = device_memory<int>(1);
    CHECK(launch_add(memory, 1, 1, free.native) == cudaSuccess);
    CHECK(cudaStreamSynchronize(free.native) == cudaSuccess);
    // This one has not been loaded, so its launch returns when the gate is open.
    std::atomic<bool> launched = false;
    std::jthread launcher([&] {
        unsigned count = 0;
        void* arguments[] = {&memory, &count, &count};
        cudaLaunchKernel(
            +[](int*, unsigned, unsigned) {}, dim3(1), dim3(1), arguments, 0, free.native);
        launched = true;
    });
    let_streams_run();
    CHECK_FALSE(launched);
    gate.open();
    launcher.join();
    CHECK(launched);
    CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("freeing memory waits for the streams") {
    const TestStream stream;
    auto* of_device = device_memory<int>(1);
    auto* of_host = pinned_memory<int>(1);
    const Gate gate;
    gate.hold(stream.native);
    std::atomic<int> freed = 0;
    std::jthread device_side([&] { freed += cudaFree(of_device) == cudaSuccess; });
    std::jthread host_side([&] { freed += cudaFreeHost(of_host) == cudaSuccess; });
    let_streams_run();
    CHECK(freed == 0);
    gate.open();
    device_side.join();
    host_side.join();
    CHECK(freed == 2);
}

TEST_CASE("memory of the pool is freed in stream order") {
    const TestStream stream;
    void* memory = nullptr;
    std::size_t before = 0, during = 0, after = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&before, &total) == cudaSuccess);
    REQUIRE(cudaMallocAsync(&memory, 1 << 20, stream.native) == cudaSuccess);
    {
        const Gate gate;
        gate.hold(stream.native);
        REQUIRE(cudaFreeAsync(memory, stream.native) == cudaSuccess);
        REQUIRE(cudaMemGetInfo(&during, &total) == cudaSuccess);
    }
    REQUIRE(cudaStreamSynchronize(stream.native) == cudaSuccess);
    REQUIRE(cudaMemGetInfo(&after, &total) == cudaSuccess);
    CHECK(before - during == 1 << 20);
    CHECK(after == before);
    CHECK(total == std::size_t{1} << 30);
}

TEST_CASE("memory has the attributes of its kind") {
    auto* of_device = device_memory<char>(1000);
    auto* of_host = pinned_memory<char>(1000);
    void* managed = nullptr;
    REQUIRE(cudaMallocManaged(&managed, 1000, cudaMemAttachGlobal) == cudaSuccess);
    std::vector<char> pageable(1000);
    const auto type_of = [](const void* address) {
        cudaPointerAttributes attributes{};
        expect(cudaPointerGetAttributes(&attributes, address), "no attributes");
        return attributes.type;
    };
    CHECK(address_of(of_device) % 256 == 0);
    CHECK(type_of(of_device + 999) == cudaMemoryTypeDevice);
    CHECK(type_of(of_host) == cudaMemoryTypeHost);
    CHECK(type_of(managed) == cudaMemoryTypeManaged);
    CHECK(type_of(pageable.data()) == cudaMemoryTypeUnregistered);
    CHECK(cudaHostRegister(pageable.data(), 1000, cudaHostRegisterDefault) == cudaSuccess);
    CHECK(cudaHostRegister(pageable.data() + 1, 10, cudaHostRegisterDefault) ==
          cudaErrorHostMemoryAlreadyRegistered);
    CHECK(type_of(pageable.data()) == cudaMemoryTypeHost);
    CHECK(cudaHostUnregister(pageable.data()) == cudaSuccess);
    CHECK(cudaHostUnregister(pageable.data()) == cudaErrorHostMemoryNotRegistered);
    std::memset(managed, 1, 1000);  // both sides may
    CHECK(cudaFree(managed) == cudaSuccess);
    CHECK(cudaFree(of_host) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(of_host) == cudaSuccess);
    CHECK(cudaFree(of_device) == cudaSuccess);
    CHECK(cudaFree(of_device) == cudaErrorInvalidValue);
    cudaGetLastError();
}

TEST_CASE("memory holds NaNs until it is written") {
    constexpr std::size_t count = 1000;
    auto *of_device = device_memory<float>(count), *of_host = pinned_memory<float>(count);
    std::vector<float> seen(count);
    expect(cudaMemcpy(seen.data(), of_device, count * sizeof(float), cudaMemcpyDeviceToHost),
           "no copy");
    const auto is_nan = [](float number) { return std::isnan(number); };
    CHECK(std::all_of(seen.begin(), seen.end(), is_nan));
    CHECK(std::all_of(of_host, of_host + count, is_nan));
    cudaFreeHost(of_host);
    cudaFree(of_device);
}

TEST_CASE("a copy stays within its memory and has the direction it says") {
    auto* memory = device_memory<char>(1000);
    std::vector<char> host(2000);
    CHECK(cudaMemcpy(memory, host.data(), 1001, cudaMemcpyDefault) == cudaErrorInvalidValue);
    CHECK(cudaMemset(memory + 1, 0, 1000) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(memory, host.data(), 1000, cudaMemcpyDeviceToHost) ==
          cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemset(host.data(), 0, 1000) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(memory, host.data(), 1000, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
    void* too_much = nullptr;
    CHECK(cudaMalloc(&too_much, (std::size_t{1} << 30) + 1) == cudaErrorMemoryAllocation);
    CHECK(too_much == nullptr);
    cudaGetLastError();
}

TEST_CASE("streams wait for words cyclically") {
    const TestStream stream;
    std::uint32_t word = 0xfffffff0u;
    REQUIRE(cudaHostRegister(&word, sizeof word, cudaHostRegisterDefault) == cudaSuccess);
    const auto wait = [&](std::uint32_t value) {
        return cuStreamWaitValue32(stream.native, address_of(&word), value,
                                   CU_STREAM_WAIT_VALUE_GEQ);
    };
    CHECK(wait(0xffffffefu) == CUDA_SUCCESS);
    CHECK(cudaStreamSynchronize(stream.native) == cudaSuccess);
    CHECK(wait(2) == CUDA_SUCCESS);  // 18 after 0xfffffff0
    let_streams_run();
    CHECK(cudaStreamQuery(stream.native) == cudaErrorNotReady);
    __atomic_store_n(&word, 2u, __ATOMIC_RELEASE);
    CHECK(cudaStreamSynchronize(stream.native) == cudaSuccess);
    CHECK(cudaHostUnregister(&word) == cudaSuccess);
    CHECK(wait(2) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("operations on words with flags that CUDA does not know are refused, all of a batch") {
    const TestStream stream;
    auto* word = pinned_memory<std::uint32_t>(1);
    *word = 0;
    const auto batch = [&](unsigned flags, CUstreamBatchMemOpType second, unsigned of_second) {
        CUstreamBatchMemOpParams both[2]{};
        for (auto& each : both) {
            each.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
            each.writeValue.address = address_of(word);
            each.writeValue.value = 7;
        }
        both[1].operation = second;
        both[1].writeValue.flags = of_second;
        return cuStreamBatchMemOp(stream.native, 2, both, flags);
    };
    constexpr unsigned unknown = 1u << 29;
    const auto write = CU_STREAM_MEM_OP_WRITE_VALUE_32, wait = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    CHECK(batch(1, write, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(batch(0, CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(batch(0, write, unknown) == CUDA_ERROR_INVALID_VALUE);
    CHECK(batch(0, wait, unknown) == CUDA_ERROR_INVALID_VALUE);
    CHECK(batch(0, wait, CU_STREAM_WAIT_VALUE_FLUSH) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuStreamWriteValue32(stream.native, address_of(word), 7, unknown) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamWaitValue32(stream.native, address_of(word), 0, unknown) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cudaStreamSynchronize(stream.native) == cudaSuccess);
    CHECK(*word == 0);
    CHECK(batch(0, wait, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    CHECK(cudaStreamSynchronize(stream.native) == cudaSuccess);
    CHECK(*word == 7);
}

TEST_CASE("calls are counted") {
    const auto before = emulated_cuda_calls();
    int device = 0;
    cudaGetDevice(&device);
    cudaGetDevice(&device);
    CHECK(emulated_cuda_calls() == before + 2);
}
