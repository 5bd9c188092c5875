// Device memory and words that two processes share.

#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <vector>

#include "emulation/child.hpp"
#include "emulation/cuda_objects.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang::test;

namespace {

std::string hex_of(const cudaIpcMemHandle_t& handle) {
    std::string text;
    for (const char each : handle.reserved) {
        const auto byte = static_cast<unsigned char>(each);
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

cudaIpcMemHandle_t handle_of(const std::string& hex) {
    cudaIpcMemHandle_t handle{};
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        handle.reserved[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    return handle;
}

std::string shared(void* memory) {
    cudaIpcMemHandle_t handle{};
    expect(cudaIpcGetMemHandle(&handle, memory), "no handle");
    return hex_of(handle);
}

/// Opens the memory, fills it with 42 from its second word on, and sets its first word to 7.
const ChildCase child("fill and tell", [](const Arguments& arguments) {
    const auto handle = handle_of(arguments[0]);
    void *memory = nullptr, *again = nullptr;
    const auto status = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) return static_cast<int>(status);
    cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess);
    if (again != memory) return 254;
    const TestStream stream;
    cudaMemsetAsync(static_cast<char*>(memory) + 4, 42, 996, stream.native);
    cuStreamWriteValue32(stream.native, address_of(memory), 7, 0);
    cudaStreamSynchronize(stream.native);
    if (cudaIpcCloseMemHandle(memory) != cudaSuccess) return 253;
    if (cudaIpcCloseMemHandle(memory) != cudaSuccess) return 252;
    return cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue ? 0 : 251;
});

}  // namespace

TEST_CASE("a stream waits for a word of another process's stream, and sees what came before it") {
    const TestStream stream;
    auto* memory = device_memory<char>(1000);
    auto* copy = pinned_memory<char>(1000);
    std::memset(copy, 1, 1000);
    REQUIRE(cudaMemset(memory, 0, 1000) == cudaSuccess);
    REQUIRE(cuStreamWaitValue32(stream.native, address_of(memory), 7, CU_STREAM_WAIT_VALUE_GEQ) ==
            CUDA_SUCCESS);
    REQUIRE(cudaMemcpyAsync(copy, memory, 1000, cudaMemcpyDeviceToHost, stream.native) ==
            cudaSuccess);
    CHECK(cudaStreamQuery(stream.native) == cudaErrorNotReady);
    const auto end = end_of("fill and tell", {}, {shared(memory)});
    INFO(end.output);
    REQUIRE(end.exit_code == 0);
    CHECK(cudaStreamSynchronize(stream.native) == cudaSuccess);
    CHECK(copy[0] == 7);
    CHECK(std::vector<char>(copy + 4, copy + 1000) == std::vector<char>(996, 42));
    CHECK(cudaFreeHost(copy) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("a handle opens in other processes only, and only while its memory is there") {
    auto* memory = device_memory<char>(1000);
    const auto handle = shared(memory);
    CHECK(shared(memory + 500) == handle);
    void* opened = nullptr;
    CHECK(cudaIpcOpenMemHandle(&opened, handle_of(handle), cudaIpcMemLazyEnablePeerAccess) ==
          cudaErrorDeviceUninitialized);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(end_of("fill and tell", {}, {handle}).exit_code == cudaErrorInvalidValue);
    auto* other = device_memory<char>(1000);
    CHECK(shared(other) != handle);
    CHECK(end_of("fill and tell", {}, {handle}).exit_code == cudaErrorInvalidValue);
    CHECK(cudaFree(other) == cudaSuccess);
    CHECK(end_of("fill and tell", {}, {std::string(128, '0')}).exit_code == cudaErrorInvalidValue);
    auto* of_host = pinned_memory<char>(64);
    cudaIpcMemHandle_t none{};
    CHECK(cudaIpcGetMemHandle(&none, of_host) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(of_host) == cudaSuccess);
    cudaGetLastError();
}
