#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <guozhuang/types.hpp>
#include <span>
#include <type_traits>

#include "device/cuda/kernel_shape.hpp"
#include "device/reduction.hpp"

/// How kernels read and write elements. For kernel sources only.
namespace guozhuang::device {

/// The type used for arithmetic: f32 for 16-bit floats, otherwise the element type.
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

/// The partial, finished.
template <class Partial>
__device__ Partial finished(Partial value, const Finish& finish) {
    if constexpr (std::is_integral_v<Partial>) {
        using Wide = std::common_type_t<Partial, int>;
        if (finish.divisor == 1) return value;
        return static_cast<Partial>(static_cast<Wide>(value) / static_cast<Wide>(finish.divisor));
    } else {
        if (finish.divisor != 1) value = value / static_cast<Partial>(finish.divisor);
        return value * static_cast<Partial>(finish.scale);
    }
}

template <class T>
struct alignas(pack_bytes) Pack {
    static constexpr unsigned lanes = pack_bytes / sizeof(T);
    T lane[lanes];
};

/// Writes a pack in one access. The compiler may turn an assignment into one access for each
/// element.
template <class T>
__device__ void write_pack(T* to, const Pack<T>& pack) {
    uint4 bits;
    memcpy(&bits, &pack, pack_bytes);
    __stwb(reinterpret_cast<uint4*>(to), bits);
}

/// How a range is split: elements [0, head), then `packs` packs, then the remaining elements one by
/// one.
struct Extent {
    std::size_t count, head, packs;
};

/// Uses packs only if all sides reach a 16-byte boundary at the same element.
template <class T>
Extent extent_of(std::size_t count, std::span<const void* const> sides) {
    const auto past = [](const void* side) {
        return reinterpret_cast<std::uintptr_t>(side) % pack_bytes;
    };
    for (const void* side : sides)
        if (past(side) != past(sides.front())) return {count, count, 0};
    const std::size_t head =
        std::min(count, (pack_bytes - past(sides.front())) % pack_bytes / sizeof(T));
    return {count, head, (count - head) / Pack<T>::lanes};
}

/// Calls action.run<T>() for the type of a floating dtype, and returns its answer.
template <class Action>
cudaError_t with_floating(DType dtype, const Action& action) {
    switch (dtype) {
        case DType::f16: return action.template run<__half>();
        case DType::bf16: return action.template run<__nv_bfloat16>();
        case DType::f32: return action.template run<float>();
        case DType::f64: return action.template run<double>();
        default: return cudaErrorInvalidValue;
    }
}

/// The same for every floating dtype, until one fails.
template <class Action>
cudaError_t with_each_floating(const Action& action) {
    for (const auto dtype : all_dtypes)
        if (is_floating(dtype))
            if (const auto status = with_floating(dtype, action); status != cudaSuccess)
                return status;
    return cudaSuccess;
}

}  // namespace guozhuang::device
