// into = into (op) other, element by element. Bound by memory: accesses 16 bytes at a time where
// both sides allow it, with enough blocks to fill the device.

#include <algorithm>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "device/cuda/reduce_kernel.hpp"

namespace guozhuang::device {
namespace {

constexpr unsigned threads_per_block = 256;
constexpr unsigned blocks_per_processor = 8;
constexpr std::size_t pack_bytes = 16;

/// The type that arithmetic happens in: 16-bit floats in f32, the others in their own.
template <class T>
struct Arithmetic {
    static __device__ T load(T value) { return value; }
    static __device__ T store(T value) { return value; }
};
template <>
struct Arithmetic<__half> {
    static __device__ float load(__half value) { return __half2float(value); }
    static __device__ __half store(float value) { return __float2half_rn(value); }
};
template <>
struct Arithmetic<__nv_bfloat16> {
    static __device__ float load(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __device__ __nv_bfloat16 store(float value) { return __float2bfloat16_rn(value); }
};

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

template <class T>
struct alignas(pack_bytes) Pack {
    static constexpr unsigned lanes = pack_bytes / sizeof(T);
    T lane[lanes];
};

/// How a range is cut: elements [0, head), then `packs` packs, then the rest, one by one.
struct Extent {
    std::size_t count, head, packs;
};

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

/// Uses packs only if both sides reach a 16-byte boundary at the same element.
template <class T>
Extent extent_of(const void* into, const void* other, std::size_t count) {
    const auto past = reinterpret_cast<std::uintptr_t>(into) % pack_bytes;
    if (past != reinterpret_cast<std::uintptr_t>(other) % pack_bytes) return {count, count, 0};
    const std::size_t head = std::min(count, (pack_bytes - past) % pack_bytes / sizeof(T));
    return {count, head, (count - head) / Pack<T>::lanes};
}

template <class Op, class T>
cudaError_t launch_as(const ReduceLaunch& launch, int processors, cudaStream_t stream) {
    auto* into = static_cast<T*>(launch.into);
    const auto* other = static_cast<const T*>(launch.other);
    auto extent = extent_of<T>(into, other, launch.count);
    const std::size_t work = std::max(extent.packs, extent.count - extent.packs * Pack<T>::lanes);
    const std::size_t wanted = (work + threads_per_block - 1) / threads_per_block;
    const auto blocks = static_cast<unsigned>(
        std::min<std::size_t>(wanted, static_cast<unsigned>(processors) * blocks_per_processor));
    void* arguments[] = {&into, &other, &extent};
    // Not <<<>>>: this returns the error of this launch, not the last one of the thread.
    return cudaLaunchKernel(reduce_kernel<Op, T>, dim3(blocks), dim3(threads_per_block), arguments,
                            0, stream);
}

template <class T>
cudaError_t launch_on(const ReduceLaunch& launch, int processors, cudaStream_t stream) {
    switch (launch.op) {
        case ReduceOp::sum:
        case ReduceOp::average: return launch_as<Sum, Modular<T>>(launch, processors, stream);
        case ReduceOp::product: return launch_as<Product, Modular<T>>(launch, processors, stream);
        case ReduceOp::min: return launch_as<Min, T>(launch, processors, stream);
        case ReduceOp::max: return launch_as<Max, T>(launch, processors, stream);
        case ReduceOp::adasum: break;
    }
    return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_reduce(const ReduceLaunch& launch, int processors, cudaStream_t stream) {
    switch (launch.dtype) {
        case DType::boolean:  // bytes 0 and 1: min is "and", max is "or"
        case DType::u8: return launch_on<std::uint8_t>(launch, processors, stream);
        case DType::i8: return launch_on<std::int8_t>(launch, processors, stream);
        case DType::i16: return launch_on<std::int16_t>(launch, processors, stream);
        case DType::i32: return launch_on<std::int32_t>(launch, processors, stream);
        case DType::i64: return launch_on<std::int64_t>(launch, processors, stream);
        case DType::u16: return launch_on<std::uint16_t>(launch, processors, stream);
        case DType::u32: return launch_on<std::uint32_t>(launch, processors, stream);
        case DType::u64: return launch_on<std::uint64_t>(launch, processors, stream);
        case DType::f16: return launch_on<__half>(launch, processors, stream);
        case DType::bf16: return launch_on<__nv_bfloat16>(launch, processors, stream);
        case DType::f32: return launch_on<float>(launch, processors, stream);
        case DType::f64: return launch_on<double>(launch, processors, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace guozhuang::device
