// Memory that a program maps itself.

#include "emulation/ranks/kernels.hpp"

#include <utility>
#include <vector>

#include "emulation/child.hpp"
#include "emulation/cuda_objects.hpp"
#include "emulation/expandable_segment.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/sanitizer.hpp"

using namespace guozhuang::test;

namespace {

/// Twice memory of a device, and addresses for three times as much, at which nothing is yet.
struct Unmapped {
    std::size_t bytes = 0;
    CUmemAllocationProp properties{};
    CUmemAccessDesc access{};
    CUmemGenericAllocationHandle first = 0, second = 0;
    CUdeviceptr start = 0;

    Unmapped() {
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        for (auto* each : {&first, &second})
            expect(cuMemCreate(each, bytes, &properties, 0), "no memory");
        expect(cuMemAddressReserve(&start, 3 * bytes, 0, 0, 0), "no addresses");
    }
    CUresult map(CUdeviceptr at, CUmemGenericAllocationHandle handle) const {
        return cuMemMap(at, bytes, 0, handle, 0);
    }
    CUresult let_in(std::size_t mappings) const {
        return cuMemSetAccess(start, mappings * bytes, &access, 1);
    }
};

const ChildCase no_access("touch before access", [](const Arguments&) {
    const Unmapped memory;
    memory.map(memory.start, memory.first);
    auto* values = reinterpret_cast<float*>(memory.start);  // NOLINT(performance-no-int-to-ptr)
    launch_set(values, 1, 1, nullptr);
    return static_cast<int>(cudaDeviceSynchronize());
});

const ChildCase sharing("share mapped memory", [](const Arguments&) {
    ExpandableSegment segment(0);
    cudaIpcMemHandle_t handle;
    return static_cast<int>(cudaIpcGetMemHandle(&handle, segment.take(64)));
});

const ChildCase twice("release twice", [](const Arguments&) {
    const Unmapped memory;
    cuMemRelease(memory.first);
    return static_cast<int>(cuMemRelease(memory.first));
});

std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    expect(cudaMemGetInfo(&free, &total), "no facts");
    return free;
}

}  // namespace

TEST_CASE("what lies in two mappings that follow each other is copied as one") {
    const TestStream stream;
    ExpandableSegment segment(0);
    const auto count = segment.mapping_bytes() * 3 / 2;
    auto* memory = static_cast<char*>(segment.take(count));
    std::vector<char> there(count), back(count);
    for (std::size_t i = 0; i < count; ++i) there[i] = static_cast<char>(i % 127);
    REQUIRE(cudaMemcpy(memory, there.data(), count, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaMemcpy(back.data(), memory, count, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(back == there);
    CHECK(cudaMemset(memory, 0, 2 * segment.mapping_bytes()) == cudaSuccess);
    CHECK(cudaMemset(memory, 0, 2 * segment.mapping_bytes() + 1) == cudaErrorInvalidValue);
    CHECK(cudaFree(memory) == cudaErrorInvalidValue);
    CUmemorytype type{};
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                address_of(memory + count - 1)) == CUDA_SUCCESS);
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    cudaGetLastError();
}

TEST_CASE("memory is mapped where addresses are reserved, once, and unmapped as a whole") {
    const Unmapped memory;
    const auto [start, bytes] = std::pair(memory.start, memory.bytes);
    CHECK(memory.map(start + 3 * bytes, memory.first) == CUDA_ERROR_INVALID_VALUE);
    CHECK(memory.map(start + bytes / 2, memory.first) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memory.map(start, memory.first) == CUDA_SUCCESS);
    CHECK(memory.map(start, memory.second) == CUDA_ERROR_INVALID_VALUE);
    CHECK(memory.let_in(2) == CUDA_ERROR_INVALID_VALUE);  // nothing is in the second
    REQUIRE(memory.map(start + bytes, memory.second) == CUDA_SUCCESS);
    CHECK(memory.let_in(2) == CUDA_SUCCESS);
    CHECK(cuMemUnmap(start, 2 * bytes) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAddressFree(start, 3 * bytes) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(start, bytes) == CUDA_SUCCESS);
    CHECK(cuMemUnmap(start, bytes) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(start + bytes, bytes) == CUDA_SUCCESS);
    CHECK(cuMemAddressFree(start, bytes) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAddressFree(start, 3 * bytes) == CUDA_SUCCESS);
    CHECK(cuMemRelease(memory.first) == CUDA_SUCCESS);
    CHECK(cuMemRelease(memory.second) == CUDA_SUCCESS);
}

TEST_CASE("memory is freed when nobody has a handle or a mapping of it") {
    const auto before = free_bytes();
    const Unmapped memory;
    CHECK(before - free_bytes() == 2 * memory.bytes);
    REQUIRE(memory.map(memory.start, memory.first) == CUDA_SUCCESS);
    cuMemRelease(memory.first);
    cuMemRelease(memory.second);
    CHECK(before - free_bytes() == memory.bytes);
    cuMemUnmap(memory.start, memory.bytes);
    CHECK(free_bytes() == before);
    cuMemAddressFree(memory.start, 3 * memory.bytes);
    CUmemGenericAllocationHandle odd{};
    CHECK(cuMemCreate(&odd, memory.bytes + 1, &memory.properties, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("mapped memory that is touched without access ends the process") {
    if (under_sanitizer) GUOZHUANG_SKIP("faults are the sanitizer's");
    CHECK(is_broken_rule(end_of("touch before access"), "a kernel or copy reached beyond"));
}

TEST_CASE("mapped memory that is shared, or released twice, ends the process") {
    CHECK(is_broken_rule(end_of("share mapped memory"),
                         "memory of a pool, mapped or managed memory"));
    CHECK(is_broken_rule(end_of("release twice"),
                         "memory without an address is used after its release"));
}
