// Elements scaled by a factor, and the sum of their squares. The sum is added up as SumOrder says,
// on every device, by three launches without a barrier: lanes, columns, and the columns' sum.

#include <algorithm>
#include <array>
#include <cstdint>

#include "device/cuda/elements_kernel.hpp"
#include "device/cuda/kernel_elements.hpp"
#include "device/cuda/kernel_shape.hpp"
#include "device/sum_order.hpp"

namespace guozhuang::device {
namespace {

static_assert(SumOrder::group_bytes == pack_bytes && SumOrder::columns == threads_per_block);

template <class T>
__global__ void __launch_bounds__(threads_per_block)
    scale_kernel(T* elements, Extent extent, double factor) {
    const std::size_t first = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    auto* packs = reinterpret_cast<Pack<T>*>(elements + extent.head);
    for (std::size_t p = first; p < extent.packs; p += stride) {
        Pack<T> pack = packs[p];
#pragma unroll
        for (unsigned lane = 0; lane < Pack<T>::lanes; ++lane)
            pack.lane[lane] = scaled(pack.lane[lane], factor);
        packs[p] = pack;
    }
    const std::size_t packed = extent.packs * Pack<T>::lanes;
    for (std::size_t i = first; i < extent.count - packed; i += stride) {
        const std::size_t at = i < extent.head ? i : i + packed;
        elements[at] = scaled(elements[at], factor);
    }
}

/// sum + element^2, rounded twice, as on the host: never fused.
template <class T>
__device__ double plus_square(double sum, T element) {
    const auto wide = static_cast<double>(Arithmetic<T>::load(element));
    return __dadd_rn(sum, __dmul_rn(wide, wide));
}

/// A group of elements, in one access if they are aligned to it.
template <class T, bool aligned>
__device__ Pack<T> group_at(const T* elements) {
    if constexpr (aligned) {
        return *reinterpret_cast<const Pack<T>*>(elements);
    } else {
        Pack<T> group;
#pragma unroll
        for (unsigned lane = 0; lane < Pack<T>::lanes; ++lane) group.lane[lane] = elements[lane];
        return group;
    }
}

template <class T, bool aligned>
__global__ void __launch_bounds__(threads_per_block)
    lanes_kernel(const T* __restrict__ elements, std::size_t count, double* __restrict__ lanes,
                 unsigned first_block) {
    const std::size_t lane = (first_block + blockIdx.x) * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t groups = count / Pack<T>::lanes;
    double sum = 0;
#pragma unroll 4
    for (std::size_t g = lane; g < groups; g += SumOrder::lanes) {
        const Pack<T> group = group_at<T, aligned>(elements + g * Pack<T>::lanes);
#pragma unroll
        for (unsigned i = 0; i < Pack<T>::lanes; ++i) sum = plus_square(sum, group.lane[i]);
    }
    if (lane == groups % SumOrder::lanes)  // the last group, which is not whole
        for (std::size_t i = groups * Pack<T>::lanes; i < count; ++i)
            sum = plus_square(sum, elements[i]);
    lanes[lane] = sum;
}

__global__ void __launch_bounds__(threads_per_block)
    columns_kernel(const double* __restrict__ lanes, std::size_t count,
                   double* __restrict__ columns) {
    double sum = 0;
#pragma unroll 8
    for (std::size_t lane = threadIdx.x; lane < count; lane += SumOrder::columns)
        sum = __dadd_rn(sum, lanes[lane]);
    columns[threadIdx.x] = sum;
}

__global__ void sum_kernel(const double* __restrict__ columns, double* __restrict__ into) {
    double sum = 0;
#pragma unroll 8
    for (std::size_t column = 0; column < SumOrder::columns; ++column)
        sum = __dadd_rn(sum, columns[column]);
    *into = sum;
}

struct Scale {
    void* elements;
    std::size_t count;
    double factor;
    int processors;
    cudaStream_t stream;

    template <class T>
    cudaError_t run() const {
        auto* first = static_cast<T*>(elements);
        auto by = factor;
        auto extent = extent_of<T>(count, std::array<const void*, 1>{first});
        const auto work = std::max(extent.packs, extent.count - extent.packs * Pack<T>::lanes);
        void* arguments[] = {&first, &extent, &by};
        return cudaLaunchKernel(scale_kernel<T>, dim3(blocks_for(work, processors)),
                                dim3(threads_per_block), arguments, 0, stream);
    }
};

struct SumLanes {
    const SumLaunch& what;
    unsigned blocks;
    int processors;
    cudaStream_t stream;

    template <class T>
    cudaError_t run() const {
        const auto address = reinterpret_cast<std::uintptr_t>(what.elements);
        return address % pack_bytes == 0 ? launch<T, true>() : launch<T, false>();
    }
    template <class T, bool aligned>
    cudaError_t launch() const {
        const auto* elements = static_cast<const T*>(what.elements);
        auto count = what.count;
        auto* lanes = what.scratch;
        // A thread for each lane, since a loop over them would spill registers: so as many launches
        // as it takes with so many blocks.
        auto status = cudaSuccess;
        for (unsigned block = 0; block < blocks && status == cudaSuccess;) {
            const auto grid = blocks_up_to(blocks - block, processors);
            void* arguments[] = {&elements, &count, &lanes, &block};
            status = cudaLaunchKernel(lanes_kernel<T, aligned>, dim3(grid), dim3(threads_per_block),
                                      arguments, 0, stream);
            block += grid;
        }
        return status;
    }
};

struct Load {
    template <class T>
    cudaError_t run() const {
        return load(scale_kernel<T>, lanes_kernel<T, true>, lanes_kernel<T, false>);
    }
};

}  // namespace

cudaError_t launch_scale(DType dtype, void* elements, std::size_t count, double factor,
                         int processors, cudaStream_t stream) {
    return with_floating(dtype, Scale{elements, count, factor, processors, stream});
}

cudaError_t launch_sum_of_squares(const SumLaunch& launch, int processors, cudaStream_t stream) {
    const auto used = SumOrder::lanes_of(launch.count * size_of(launch.dtype));
    const auto blocks = static_cast<unsigned>((used + threads_per_block - 1) / threads_per_block);
    if (blocks > 0)
        if (const auto status =
                with_floating(launch.dtype, SumLanes{launch, blocks, processors, stream});
            status != cudaSuccess)
            return status;
    const double* lanes = launch.scratch;
    auto count = std::size_t{blocks} * threads_per_block;
    double* columns = launch.scratch + SumOrder::lanes;
    void* of_columns[] = {&lanes, &count, &columns};
    const auto status =
        cudaLaunchKernel(columns_kernel, dim3(1), dim3(threads_per_block), of_columns, 0, stream);
    if (status != cudaSuccess) return status;
    const double* summands = columns;
    double* into = launch.into;
    void* of_sum[] = {&summands, &into};
    return cudaLaunchKernel(sum_kernel, dim3(1), dim3(1), of_sum, 0, stream);
}

cudaError_t load_elements_kernels() {
    const auto status = with_each_floating(Load{});
    return status == cudaSuccess ? load(columns_kernel, sum_kernel) : status;
}

}  // namespace guozhuang::device
