#pragma once

#include <chrono>
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdexcept>
#include <string>
#include <thread>

namespace guozhuang::test {

/// Throws unless CUDA says success, so that what a test only needs is no assertion of it.
inline void expect(cudaError_t status, const char* what) {
    if (status != cudaSuccess)
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status));
}

/// Gives threads of streams the time to do what they must not do.
inline void let_streams_run() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// One of CUDA's streams or events, which is destroyed in the end.
template <class Native, auto create, auto destroy, unsigned usual_flags>
struct TestObject {
    Native native = nullptr;
    explicit TestObject(unsigned flags = usual_flags) {
        expect(create(&native, flags), "no stream or event");
    }
    ~TestObject() { destroy(native); }
    TestObject(const TestObject&) = delete;
    TestObject& operator=(const TestObject&) = delete;
};
using TestStream =
    TestObject<cudaStream_t, cudaStreamCreateWithFlags, cudaStreamDestroy, cudaStreamNonBlocking>;
using TestEvent =
    TestObject<cudaEvent_t, cudaEventCreateWithFlags, cudaEventDestroy, cudaEventDisableTiming>;

template <class T>
T* device_memory(std::size_t count) {
    void* memory = nullptr;
    expect(cudaMalloc(&memory, count * sizeof(T)), "no device memory");
    return static_cast<T*>(memory);
}

template <class T>
T* pinned_memory(std::size_t count) {
    void* memory = nullptr;
    expect(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault), "no host memory");
    return static_cast<T*>(memory);
}

inline CUdeviceptr address_of(const void* memory) {
    return reinterpret_cast<CUdeviceptr>(memory);
}

/// A word in pinned memory behind which a stream can be held.
class Gate {
public:
    Gate() : word_(pinned_memory<std::uint32_t>(1)) { *word_ = 0; }
    ~Gate() {
        open();
        cudaFreeHost(word_);
    }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    void hold(cudaStream_t stream) const {
        if (cuStreamWaitValue32(stream, address_of(word_), 1, CU_STREAM_WAIT_VALUE_GEQ) !=
            CUDA_SUCCESS)
            throw std::runtime_error("cannot wait for a word");
    }
    void open() const { __atomic_store_n(word_, 1u, __ATOMIC_RELEASE); }

private:
    std::uint32_t* word_;
};

}  // namespace guozhuang::test
