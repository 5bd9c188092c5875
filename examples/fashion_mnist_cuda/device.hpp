#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace fashion::cuda {

/// Throws std::runtime_error unless CUDA says success.
inline void check(cudaError_t status) {
    if (status != cudaSuccess)
        throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

/// Makes the GPU with that number, modulo how many this machine has, the current one, and returns
/// which it is.
inline int use_device(int number) {
    int devices = 0;
    check(cudaGetDeviceCount(&devices));
    check(cudaSetDevice(number % devices));
    return number % devices;
}

/// A stream that is ordered with the default stream, on which cudaMemcpy and cudaMemset run.
class Stream {
public:
    Stream() { check(cudaStreamCreate(&native_)); }
    ~Stream() { cudaStreamDestroy(native_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    cudaStream_t native() const noexcept { return native_; }

private:
    cudaStream_t native_ = nullptr;
};

/// A mark on a stream, for which the host can wait.
class Event {
public:
    Event() { check(cudaEventCreateWithFlags(&native_, cudaEventDisableTiming)); }
    ~Event() { cudaEventDestroy(native_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(const Stream& stream) { check(cudaEventRecord(native_, stream.native())); }
    /// Until the stream has come to the latest record(); not at all if there was none.
    void wait() const { check(cudaEventSynchronize(native_)); }

private:
    cudaEvent_t native_ = nullptr;
};

/// Memory of the current device, which the host can neither read nor write.
struct OnDevice {
    static cudaError_t allocate(void** memory, std::size_t bytes) {
        return cudaMalloc(memory, bytes);
    }
    static void release(void* memory) { cudaFree(memory); }
};

/// Memory of the host from which a copy to the device is only enqueued.
struct Pinned {
    static cudaError_t allocate(void** memory, std::size_t bytes) {
        return cudaMallocHost(memory, bytes);
    }
    static void release(void* memory) { cudaFreeHost(memory); }
};

/// An array in memory that CUDA allocates, uninitialised.
template <class T, class Where>
class Array {
public:
    explicit Array(std::size_t size) : size_(size) {
        void* memory = nullptr;
        check(Where::allocate(&memory, size * sizeof(T)));
        memory_.reset(static_cast<T*>(memory));
    }

    T* data() const noexcept { return memory_.get(); }
    std::size_t size() const noexcept { return size_; }
    std::span<T> all() const noexcept { return {data(), size_}; }

private:
    struct Release {
        void operator()(T* memory) const noexcept { Where::release(memory); }
    };
    std::unique_ptr<T[], Release> memory_;
    std::size_t size_;
};
template <class T>
using DeviceArray = Array<T, OnDevice>;
template <class T>
using PinnedArray = Array<T, Pinned>;

/// Copies between host and device, once all that was enqueued before is done.
template <class T>
void copy(std::span<T> to, std::span<const T> from) {
    check(cudaMemcpy(to.data(), from.data(), from.size_bytes(), cudaMemcpyDefault));
}

}  // namespace fashion::cuda
