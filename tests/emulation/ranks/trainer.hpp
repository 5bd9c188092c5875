#pragma once

#include <algorithm>
#include <cstring>
#include <cuda_runtime_api.h>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "emulation/cuda_objects.hpp"
#include "support/tensors/device_memory.hpp"

namespace guozhuang::test {

/// Memory of the CUDA device that is this rank's by its number on the host, and a stream: what a
/// trainer has. While it lives, the operations of tests/support/cases have their tensors there.
class Trainer : public DeviceMemory {
public:
    Trainer() { device_memory() = this; }
    ~Trainer() override {
        cudaStreamSynchronize(native());
        device_memory() = nullptr;
    }
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    int device() const noexcept { return device_; }
    cudaStream_t native() const noexcept { return stream_.native; }
    StreamRef stream() const override {
        return {.device = {DeviceKind::cuda, device_}, .native = stream_.native};
    }

    std::shared_ptr<void> put(std::span<const std::byte> bytes) override {
        expect(cudaSetDevice(device_), "no device");
        if (bytes.empty()) return nullptr;
        auto memory = allocate(bytes.size());
        expect(cudaMemcpyAsync(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                               native()),
               "cannot copy to the device");
        return memory;
    }
    void get(std::span<std::byte> bytes, const void* from) override {
        if (bytes.empty()) return;
        expect(cudaMemcpyAsync(bytes.data(), from, bytes.size(), cudaMemcpyDeviceToHost, native()),
               "cannot copy from the device");
        synchronize();
    }
    void synchronize() const { expect(cudaStreamSynchronize(native()), "the stream has failed"); }

    /// Allocates `count` elements on the device.
    template <class T>
    static std::shared_ptr<T> device_memory_of(std::size_t count) {
        return {test::device_memory<T>(count), [](T* memory) { cudaFree(memory); }};
    }
    template <class T>
    std::shared_ptr<T> put_elements(const std::vector<T>& elements) {
        return std::static_pointer_cast<T>(put(std::as_bytes(std::span(elements))));
    }
    template <class T>
    std::vector<T> elements(const std::shared_ptr<T>& from, std::size_t count) {
        std::vector<T> all(count);
        get(std::as_writable_bytes(std::span(all)), from.get());
        return all;
    }
    template <class T>
    TensorView view(const std::shared_ptr<T>& memory, std::size_t count) const {
        return {memory.get(), dtype_of<T>, {static_cast<std::int64_t>(count)}, stream().device};
    }

protected:
    virtual std::shared_ptr<void> allocate(std::size_t bytes) {
        return device_memory_of<std::byte>(bytes);
    }

private:
    static int own_device() {
        int devices = 0;
        expect(cudaGetDeviceCount(&devices), "no devices");
        const int device = Session::current().local_rank() % devices;
        expect(cudaSetDevice(device), "no device");
        return device;
    }

    const int device_ = own_device();
    const TestStream stream_;
};

inline bool are_all(const std::vector<float>& values, float value) {
    return std::ranges::all_of(values, [value](float each) { return each == value; });
}

}  // namespace guozhuang::test
