#include "support/emulated_nccl/reduction.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "support/emulated_nccl/calls.hpp"

namespace guozhuang::emulated_nccl {
namespace {

/// As NCCL's minimum and maximum of floats, these lose a NaN.
template <class T>
T combined(ncclRedOp_t op, T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using Modular = std::make_unsigned_t<T>;
        const auto wide_a = std::uint64_t{static_cast<Modular>(a)},
                   wide_b = std::uint64_t{static_cast<Modular>(b)};
        if (op == ncclSum) return static_cast<T>(wide_a + wide_b);
        if (op == ncclProd) return static_cast<T>(wide_a * wide_b);
        return (op == ncclMin) == (a < b) ? a : b;
    } else {
        if (op == ncclSum) return a + b;
        if (op == ncclProd) return a * b;
        return op == ncclMin ? std::fmin(a, b) : std::fmax(a, b);
    }
}

__half combined(ncclRedOp_t op, __half a, __half b) {
    return __float2half_rn(combined(op, __half2float(a), __half2float(b)));
}
__nv_bfloat16 combined(ncclRedOp_t op, __nv_bfloat16 a, __nv_bfloat16 b) {
    return __float2bfloat16_rn(combined(op, __bfloat162float(a), __bfloat162float(b)));
}

template <class T>
void combine_all(ncclRedOp_t op, std::span<std::byte> into, std::span<const std::byte> from) {
    for (std::size_t at = 0; at < into.size(); at += sizeof(T)) {
        T a, b;
        std::memcpy(&a, &into[at], sizeof(T));
        std::memcpy(&b, &from[at], sizeof(T));
        a = combined(op, a, b);
        std::memcpy(&into[at], &a, sizeof(T));
    }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8: return 1;
        case ncclFloat16:
        case ncclBfloat16: return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32: return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64: return 8;
        default: throw Refusal{ncclInvalidArgument, "an unknown type"};
    }
}

void combine(ncclRedOp_t op, ncclDataType_t type, std::span<std::byte> into,
             std::span<const std::byte> from) {
    switch (type) {
        case ncclInt8: return combine_all<std::int8_t>(op, into, from);
        case ncclUint8: return combine_all<std::uint8_t>(op, into, from);
        case ncclInt32: return combine_all<std::int32_t>(op, into, from);
        case ncclUint32: return combine_all<std::uint32_t>(op, into, from);
        case ncclInt64: return combine_all<std::int64_t>(op, into, from);
        case ncclUint64: return combine_all<std::uint64_t>(op, into, from);
        case ncclFloat16: return combine_all<__half>(op, into, from);
        case ncclBfloat16: return combine_all<__nv_bfloat16>(op, into, from);
        case ncclFloat32: return combine_all<float>(op, into, from);
        case ncclFloat64: return combine_all<double>(op, into, from);
        default: break_rule("a type that was not checked");
    }
}

}  // namespace guozhuang::emulated_nccl
