#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <guozhuang/export.hpp>
#include <string_view>
#include <type_traits>

namespace guozhuang {

/// Element types. f16 is IEEE binary16, bf16 the upper half of binary32; boolean is one byte, 0 or
/// 1.
enum class DType : std::uint8_t {
    u8 = 0,
    i8 = 1,
    i16 = 2,
    i32 = 3,
    i64 = 4,
    boolean = 5,
    f16 = 6,
    bf16 = 7,
    f32 = 8,
    f64 = 9,
    u16 = 10,
    u32 = 11,
    u64 = 12
};
/// The DType with the highest number; every number up to it is a DType. Likewise for the other
/// enumerations whose numbers travel between ranks.
constexpr DType last_of(DType) noexcept {
    return DType::u64;
}

/// Storage of an f16 element: the bits alone. Arithmetic happens inside the library, in f32.
struct Half {
    std::uint16_t bits = 0;
    friend bool operator==(Half, Half) = default;
};
/// The same for a bf16 element.
struct BFloat16 {
    std::uint16_t bits = 0;
    friend bool operator==(BFloat16, BFloat16) = default;
};

/// How contributions are combined. Integer sums wrap; `average` divides the full sum by the number
/// of ranks. Averages of integers are truncated toward zero; those of 8 to 32 bits divide the true
/// sum, those of 64 bits the sum that has wrapped. On boolean min is "and", max is "or"; sum,
/// average and product are refused.
///
/// `adasum` adds what is new in each contribution and averages what they share: two orthogonal
/// tensors give their sum, two equal ones themselves, by Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 -
/// a.b / 2|b|^2) b, and more than two along the tree of docs/algorithms.md. Treats each tensor of a
/// group or bundle separately; a tensor of zeros has no effect. Floating dtypes and allreduce only.
enum class ReduceOp : std::uint8_t {
    sum = 0,
    average = 1,
    min = 2,
    max = 3,
    product = 4,
    adasum = 5
};
constexpr ReduceOp last_of(ReduceOp) noexcept {
    return ReduceOp::adasum;
}

/// How an allreduce moves its data (docs/algorithms.md). `automatic`: by size and place.
/// `automatic` and `direct` become `staged` in memory that the ranks of one host share; `automatic`
/// becomes `hierarchical` on several hosts.
enum class Algorithm : std::uint8_t {
    automatic = 0,
    ring = 1,
    recursive_doubling = 2,
    direct = 3,
    parameter_server = 4,
    staged = 5,
    hierarchical = 6
};
constexpr Algorithm last_of(Algorithm) noexcept {
    return Algorithm::hierarchical;
}

/// "f32", "bool" ... as messages, logs and command lines spell them; "unknown" for a number without
/// an enumerator, here and below.
GUOZHUANG_API std::string_view name_of(DType dtype) noexcept;
/// "sum", "average" ...
GUOZHUANG_API std::string_view name_of(ReduceOp op) noexcept;
/// "ring", "recursive_doubling" ...
GUOZHUANG_API std::string_view name_of(Algorithm algorithm) noexcept;

namespace detail {
/// The enumerators of an enumeration, by number.
template <class Enum>
constexpr auto all_of() noexcept {
    std::array<Enum, static_cast<std::size_t>(last_of(Enum{})) + 1> all{};
    for (std::size_t number = 0; number < all.size(); ++number)
        all[number] = static_cast<Enum>(number);
    return all;
}
}  // namespace detail

/// Every DType, and every ReduceOp, for loops over all of them.
inline constexpr auto all_dtypes = detail::all_of<DType>();
inline constexpr auto all_reduce_ops = detail::all_of<ReduceOp>();

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
    switch (dtype) {
        case DType::u8:
        case DType::i8:
        case DType::boolean: return 1;
        case DType::i16:
        case DType::u16:
        case DType::f16:
        case DType::bf16: return 2;
        case DType::i32:
        case DType::u32:
        case DType::f32: return 4;
        case DType::i64:
        case DType::u64:
        case DType::f64: return 8;
    }
    return 0;
}

/// Whether prescale, postscale and gradient_scale may be other than 1.
constexpr bool is_floating(DType dtype) noexcept {
    return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 ||
           dtype == DType::f64;
}

namespace detail {
template <class T, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<T, Others> || ...);
/// Neither bool nor a character.
template <class T>
concept Integer = is_one_of<T, signed char, short, int, long, long long, unsigned char,
                            unsigned short, unsigned, unsigned long, unsigned long long>;
}  // namespace detail

/// The C++ element types that map to a DType.
template <class T>
struct dtype_traits;
/// Chosen by sign and size, so it covers long, long long, std::int64_t (whichever it is) and
/// std::size_t.
template <detail::Integer T>
struct dtype_traits<T> {
    static constexpr DType value =
        sizeof(T) == 1   ? (std::is_signed_v<T> ? DType::i8 : DType::u8)
        : sizeof(T) == 2 ? (std::is_signed_v<T> ? DType::i16 : DType::u16)
        : sizeof(T) == 4 ? (std::is_signed_v<T> ? DType::i32 : DType::u32)
                         : (std::is_signed_v<T> ? DType::i64 : DType::u64);
};
template <>
struct dtype_traits<bool> {
    static constexpr DType value = DType::boolean;
};
template <>
struct dtype_traits<Half> {
    static constexpr DType value = DType::f16;
};
template <>
struct dtype_traits<BFloat16> {
    static constexpr DType value = DType::bf16;
};
template <>
struct dtype_traits<float> {
    static constexpr DType value = DType::f32;
};
template <>
struct dtype_traits<double> {
    static constexpr DType value = DType::f64;
};

/// The DType of a C++ element type: dtype_of<float> is DType::f32.
template <class T>
inline constexpr DType dtype_of = dtype_traits<T>::value;

/// A C++ type that can be an element of a tensor.
template <class T>
concept Element = requires {
    { dtype_traits<T>::value } -> std::convertible_to<DType>;
};

}  // namespace guozhuang
