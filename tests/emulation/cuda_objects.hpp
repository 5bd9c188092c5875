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

struct TestStream {
    cudaStream_t native = nullptr;
    explicit TestStream(unsigned flags = cudaStreamNonBlocking) {
        expect(cudaStreamCreateWithFlags(&native, flags), "no stream");
    }
    ~TestStream() { cudaStreamDestroy(native); }
    TestStream(const TestStream&) = delete;
    TestStream& operator=(const TestStream&) = delete;
};

struct TestEvent {
    cudaEvent_t native = nullptr;
    explicit TestEvent(unsigned flags = cudaEventDisableTiming) {
        expect(cudaEventCreateWithFlags(&native, flags), "no event");
    }
    ~TestEvent() { cudaEventDestroy(native); }
    TestEvent(const TestEvent&) = delete;
    TestEvent& operator=(const TestEvent&) = delete;
};

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
