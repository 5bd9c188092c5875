// Launches of kernels. Code that depends on a kernel's type is in kernel.hpp, which calls this.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/configuration.hpp"
#include "support/emulated_cuda/device_facts.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/emulated_cuda/kernel.hpp"
#include "support/emulated_cuda/rules.hpp"
#include "support/emulated_cuda/submit.hpp"

namespace guozhuang::emulated_cuda {
namespace {

/// A kernel's code is loaded when it is first needed, which waits for the device to be idle. So
/// whoever launches it first while a stream waits for this thread hangs, here as on a GPU.
void load(const void* kernel) {
    static std::mutex mutex;
    static auto& loaded = *new std::set<std::pair<const Device*, const void*>>;
    auto& device = current_device();
    {
        const std::lock_guard lock(mutex);
        if (loaded.contains({&device, kernel})) return;
    }
    device.wait_until_idle();
    const std::lock_guard lock(mutex);
    loaded.insert({&device, kernel});
}

std::atomic<unsigned> largest_grid = 0;

void note_grid(dim3 grid) {
    const unsigned blocks = grid.x * grid.y * grid.z;
    unsigned largest = largest_grid;
    while (largest < blocks && !largest_grid.compare_exchange_weak(largest, blocks)) {
    }
}

bool is_valid(dim3 block) {
    const auto threads = std::size_t{block.x} * block.y * block.z;
    return threads > 0 && threads <= device_facts::threads_per_block;
}

bool is_valid_grid(dim3 grid) {
    return grid.x > 0 && grid.x <= 0x7fffffff && grid.y > 0 && grid.y <= 0xffff && grid.z > 0 &&
           grid.z <= 0xffff;
}

}  // namespace
}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

cudaError_t emulated_cuda_launch(const KernelLaunch& launch, std::function<void()> run_all) {
    return call(launch.function, usual, [&] {
        require(is_valid(launch.block) && is_valid_grid(launch.grid),
                cudaErrorInvalidConfiguration);
        const auto stream = stream_of(launch.stream);
        require(&stream->device() == &current_device(), cudaErrorInvalidResourceHandle);
        load(launch.kernel);
        note_grid(launch.grid);
        submit(*stream, Stream::Actor::kernel, std::move(run_all));
        return stream->device().error();
    });
}

unsigned emulated_cuda_largest_grid() {
    return largest_grid.exchange(0);
}

void emulated_cuda_order_blocks(unsigned* order, unsigned blocks) {
    const std::span all(order, blocks);
    std::iota(all.begin(), all.end(), 0U);
    if (blocks == 1) return;
    static const int seed = [] {
        const int chosen = configuration().seed;
        std::fprintf(stderr, "emulated CUDA: EMULATED_CUDA_SEED=%d\n", chosen);
        return chosen;
    }();
    static std::atomic<unsigned> launches = 0;
    std::seed_seq mixed{static_cast<unsigned>(seed), launches++};
    std::shuffle(all.begin(), all.end(), std::mt19937(mixed));
}

void emulated_cuda_break_rule(const char* text) {
    break_rule(text);
}

// NOLINTNEXTLINE(readability-function-size): the parameters are CUDA's.
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
    enter_function(__func__);
    break_rule("a kernel is launched by its address alone, which the emulation cannot do");
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
    return call(__func__, usual, [&] {
        require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
        load(kernel);
        *attributes = {};
        attributes->maxThreadsPerBlock = device_facts::threads_per_block;
        attributes->numRegs = device_facts::registers_per_thread;
        return cudaSuccess;
    });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int,
                                                          std::size_t) {
    return call(__func__, usual, [&] {
        require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
        load(kernel);
        *blocks = device_facts::blocks_per_multiprocessor;
        return cudaSuccess;
    });
}
