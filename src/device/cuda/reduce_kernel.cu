// into = into (op) other, element by element.

#include <cstdint>
#include <type_traits>

#include "device/cuda/kernel_elements.hpp"
#include "device/cuda/kernel_shape.hpp"
#include "device/cuda/reduce_kernel.hpp"

namespace guozhuang::device {
namespace {

/// Sums and products modulo 2^bits are the same for signed and unsigned numbers.
template <class T>
using Modular = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                            std::type_identity<T>>::type;

/// Wide enough that narrow integers are not promoted to a signed type, in which wrapping would be
/// undefined.
template <class T>
using Wrapping = std::common_type_t<unsigned, T>;

struct Sum {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_integral_v<T>)
            return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
        else
            return a + b;
    }
};
struct Product {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_integral_v<T>)
            return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
        else
            return a * b;
    }
};
/// Of floats where neither is less: the same number, zeros of which either may be negative (-0 is
/// below +0), or NaN, which the sum then is.
struct Min {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>)
            return a < b ? a : b < a ? b : a == b ? (signbit(a) ? a : b) : a + b;
        else
            return a < b ? a : b;
    }
};
struct Max {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>)
            return a > b ? a : b > a ? b : a == b ? (signbit(a) ? b : a) : a + b;
        else
            return a > b ? a : b;
    }
};

template <class Op, class T>
__device__ T combine(T a, T b) {
    return Arithmetic<T>::store(Op::apply(Arithmetic<T>::load(a), Arithmetic<T>::load(b)));
}

template <class Op, class T>
__global__ void __launch_bounds__(threads_per_block)
    reduce_kernel(T* __restrict__ into, const T* __restrict__ other, Extent extent) {
    const std::size_t first = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    auto* to = reinterpret_cast<Pack<T>*>(into + extent.head);
    const auto* from = reinterpret_cast<const Pack<T>*>(other + extent.head);
    for (std::size_t p = first; p < extent.packs; p += stride) {
        Pack<T> sum = to[p];
        const Pack<T> arrived = from[p];
#pragma unroll
        for (unsigned lane = 0; lane < Pack<T>::lanes; ++lane)
            sum.lane[lane] = combine<Op>(sum.lane[lane], arrived.lane[lane]);
        to[p] = sum;
    }
    const std::size_t packed = extent.packs * Pack<T>::lanes;
    for (std::size_t i = first; i < extent.count - packed; i += stride) {
        const std::size_t at = i < extent.head ? i : i + packed;
        into[at] = combine<Op>(into[at], other[at]);
    }
}

/// Calls action.run<Op, T>(), of the kernel for an operation on T, and returns its answer.
template <class T, class Action>
cudaError_t with_kernel_on(ReduceOp op, const Action& action) {
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::average: return action.template run<Sum, Modular<T>>();
        case ReduceOp::product: return action.template run<Product, Modular<T>>();
        case ReduceOp::min: return action.template run<Min, T>();
        case ReduceOp::max: return action.template run<Max, T>();
        case ReduceOp::adasum: break;
    }
    return cudaErrorInvalidValue;
}

template <class Action>
cudaError_t with_kernel(ReduceOp op, DType dtype, const Action& action) {
    switch (dtype) {
        case DType::boolean:  // bytes 0 and 1: min is "and", max is "or"
        case DType::u8: return with_kernel_on<std::uint8_t>(op, action);
        case DType::i8: return with_kernel_on<std::int8_t>(op, action);
        case DType::i16: return with_kernel_on<std::int16_t>(op, action);
        case DType::i32: return with_kernel_on<std::int32_t>(op, action);
        case DType::i64: return with_kernel_on<std::int64_t>(op, action);
        case DType::u16: return with_kernel_on<std::uint16_t>(op, action);
        case DType::u32: return with_kernel_on<std::uint32_t>(op, action);
        case DType::u64: return with_kernel_on<std::uint64_t>(op, action);
        case DType::f16: return with_kernel_on<__half>(op, action);
        case DType::bf16: return with_kernel_on<__nv_bfloat16>(op, action);
        case DType::f32: return with_kernel_on<float>(op, action);
        case DType::f64: return with_kernel_on<double>(op, action);
    }
    return cudaErrorInvalidValue;
}

struct Launch {
    const ReduceLaunch& what;
    int processors;
    cudaStream_t stream;

    template <class Op, class T>
    cudaError_t run() const {
        auto* into = static_cast<T*>(what.into);
        const auto* other = static_cast<const T*>(what.other);
        auto extent = extent_of<T>(into, other, what.count);
        const auto work = std::max(extent.packs, extent.count - extent.packs * Pack<T>::lanes);
        void* arguments[] = {&into, &other, &extent};
        // Not <<<>>>: this returns the error of this launch, not the last one of the thread.
        return cudaLaunchKernel(reduce_kernel<Op, T>, dim3(blocks_for(work, processors)),
                                dim3(threads_per_block), arguments, 0, stream);
    }
};

struct Load {
    template <class Op, class T>
    cudaError_t run() const {
        cudaFuncAttributes attributes{};
        return cudaFuncGetAttributes(&attributes, reduce_kernel<Op, T>);
    }
};

}  // namespace

cudaError_t launch_reduce(const ReduceLaunch& launch, int processors, cudaStream_t stream) {
    return with_kernel(launch.op, launch.dtype, Launch{launch, processors, stream});
}

cudaError_t load_reduce_kernels() {
    for (const auto dtype : all_dtypes) {
        for (const auto op : all_reduce_ops) {
            if (op == ReduceOp::adasum) continue;  // it has no kernel
            if (const auto status = with_kernel(op, dtype, Load{}); status != cudaSuccess)
                return status;
        }
    }
    return cudaSuccess;
}

}  // namespace guozhuang::device
