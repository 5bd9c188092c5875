// Sets memory to a repeated element of up to 8 bytes. Elements are aligned, so the bytes of memory
// depend on their addresses modulo 8 alone, whatever the element's size: one kernel serves all.

#include "device/cuda/fill_kernel.hpp"

namespace guozhuang::device {
namespace {

struct alignas(pack_bytes) Pack {
    std::uint64_t low, high;
};

/// How the memory is cut: `head` bytes before the first pack, fewer than a pack, and `tail` bytes
/// after the last one.
struct Extent {
    std::size_t head, packs, tail;
};

__global__ void __launch_bounds__(threads_per_block)
    fill_kernel(std::uint8_t* memory, Extent extent, std::uint64_t pattern) {
    const std::size_t first = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    auto* packs = reinterpret_cast<Pack*>(memory + extent.head);
    for (std::size_t p = first; p < extent.packs; p += stride) packs[p] = {pattern, pattern};
    if (first >= extent.head + extent.tail) return;
    auto* byte = memory + (first < extent.head ? first : first + extent.packs * sizeof(Pack));
    *byte = static_cast<std::uint8_t>(pattern >> reinterpret_cast<std::uintptr_t>(byte) % 8 * 8);
}

}  // namespace

cudaError_t launch_fill(std::span<std::byte> memory, std::uint64_t pattern,
                        const Multiprocessors& processors, cudaStream_t stream) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(memory.data());
    const auto past = reinterpret_cast<std::uintptr_t>(bytes) % sizeof(Pack);
    const auto head = std::min(memory.size(), (sizeof(Pack) - past) % sizeof(Pack));
    const auto rest = memory.size() - head;
    Extent extent{head, rest / sizeof(Pack), rest % sizeof(Pack)};
    static_assert(2 * pack_bytes <= threads_per_block, "one block has a thread for each odd byte");
    const auto blocks = std::max(1u, processors.blocks_for(extent.packs, fill_kernel));
    void* arguments[] = {&bytes, &extent, &pattern};
    return cudaLaunchKernel(fill_kernel, dim3(blocks), dim3(threads_per_block), arguments, 0,
                            stream);
}

cudaError_t load_fill_kernel(Occupancy& occupancy) {
    return occupancy.load(fill_kernel);
}

}  // namespace guozhuang::device
