// The sum of the squares of elements, added up as SumOrder says on every device, by three launches
// without a barrier: lanes, columns, and the columns' sum.

#include <cstdint>

#include "device/cuda/elements_kernel.hpp"
#include "device/cuda/kernel_elements.hpp"
#include "device/cuda/kernel_shape.hpp"
#include "device/sum_order.hpp"

namespace guozhuang::device {
namespace {

static_assert(SumOrder::group_bytes == pack_bytes && SumOrder::columns == threads_per_block);

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

struct SumLanes {
    const SumLaunch& what;
    unsigned blocks;
    const Multiprocessors& processors;
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
        // A thread for each lane, since a loop over lanes would spill registers; so as many
        // launches as these blocks need.
        auto status = cudaSuccess;
        for (unsigned block = 0; block < blocks && status == cudaSuccess;) {
            const auto grid = processors.blocks_up_to(blocks - block, lanes_kernel<T, aligned>);
            void* arguments[] = {&elements, &count, &lanes, &block};
            status = cudaLaunchKernel(lanes_kernel<T, aligned>, dim3(grid), dim3(threads_per_block),
                                      arguments, 0, stream);
            block += grid;
        }
        return status;
    }
};

struct Load {
    Occupancy& occupancy;

    template <class T>
    cudaError_t run() const {
        return occupancy.load(lanes_kernel<T, true>, lanes_kernel<T, false>);
    }
};

}  // namespace

cudaError_t launch_sum_of_squares(const SumLaunch& launch, const Multiprocessors& processors,
                                  cudaStream_t stream) {
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

cudaError_t load_elements_kernels(Occupancy& occupancy) {
    const auto status = with_each_floating(Load{occupancy});
    return status == cudaSuccess ? occupancy.load(columns_kernel, sum_kernel) : status;
}

}  // namespace guozhuang::device
