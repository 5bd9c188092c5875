#include "device/host/neutral.hpp"

#include <cstdint>
#include <cstring>
#include <limits>

#include "device/host/float16.hpp"

namespace guozhuang::device {
namespace {

template <class T>
T neutral(ReduceOp op) noexcept {
    using Limits = std::numeric_limits<T>;
    switch (op) {
        case ReduceOp::product: return T{1};
        case ReduceOp::min: return Limits::has_infinity ? Limits::infinity() : Limits::max();
        case ReduceOp::max: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
        default: return std::is_floating_point_v<T> ? static_cast<T>(-0.0) : T{0};
    }
}

template <class T>
void fill(std::span<std::byte> elements, T value) noexcept {
    for (std::size_t at = 0; at + sizeof value <= elements.size(); at += sizeof value)
        std::memcpy(elements.data() + at, &value, sizeof value);
}

}  // namespace

void fill_neutral(DType dtype, ReduceOp op, std::span<std::byte> elements) noexcept {
    switch (dtype) {
        case DType::u8: return fill(elements, neutral<std::uint8_t>(op));
        case DType::i8: return fill(elements, neutral<std::int8_t>(op));
        case DType::i16: return fill(elements, neutral<std::int16_t>(op));
        case DType::i32: return fill(elements, neutral<std::int32_t>(op));
        case DType::i64: return fill(elements, neutral<std::int64_t>(op));
        case DType::u16: return fill(elements, neutral<std::uint16_t>(op));
        case DType::u32: return fill(elements, neutral<std::uint32_t>(op));
        case DType::u64: return fill(elements, neutral<std::uint64_t>(op));
        case DType::boolean:
            return fill(elements, static_cast<std::uint8_t>(op == ReduceOp::min ? 1 : 0));
        case DType::f16: return fill(elements, to_half(neutral<float>(op)));
        case DType::bf16: return fill(elements, to_bfloat16(neutral<float>(op)));
        case DType::f32: return fill(elements, neutral<float>(op));
        case DType::f64: return fill(elements, neutral<double>(op));
    }
}

}  // namespace guozhuang::device
