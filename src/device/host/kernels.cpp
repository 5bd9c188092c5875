#include "device/host/kernels.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <guozhuang/error.hpp>
#include <string>
#include <type_traits>

#include "device/host/float16.hpp"

// This file is compiled once per target, by foreach_target.h. On x86 that is AVX2, AVX-512 and a
// plain loop for anything older.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/host/kernels.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Whether the target converts f16 in hardware. Highway's substitute neither rounds to nearest nor
// knows NaN.
#undef GUOZHUANG_NATIVE_F16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET <= HWY_NEON)
#define GUOZHUANG_NATIVE_F16 1
#else
#define GUOZHUANG_NATIVE_F16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace guozhuang::device {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- Formats: how numbers lie in memory, `element_bytes` each, and the vectors (tag D) in which
// they are computed.

template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const std::byte* from) {
    using T = hn::TFromD<D>;
#if HWY_TARGET == HWY_SCALAR  // where LoadU wants an aligned address
    T value;
    std::memcpy(&value, from, sizeof value);
    return hn::Set(d, value);
#else
    return hn::LoadU(d, reinterpret_cast<const T*>(from));
#endif
}

template <class D>
HWY_INLINE void store_lanes(D d, hn::Vec<D> values, std::byte* into) {
    using T = hn::TFromD<D>;
#if HWY_TARGET == HWY_SCALAR
    const T value = hn::GetLane(values);
    std::memcpy(into, &value, sizeof value);
    (void)d;
#else
    hn::StoreU(values, d, reinterpret_cast<T*>(into));
#endif
}

template <class T>
struct Same {
    using D = hn::ScalableTag<T>;
    static constexpr std::size_t element_bytes = sizeof(T);

    static HWY_INLINE hn::Vec<D> load(const std::byte* from) { return load_lanes(D(), from); }
    static HWY_INLINE void store(hn::Vec<D> values, std::byte* into) {
        store_lanes(D(), values, into);
    }
};

/// Half as many bits in memory as in the vectors: 16-bit floats are computed in f32, bytes modulo
/// 2^16.
template <class Stored, class Lane>
struct Widened {
    using D = hn::ScalableTag<Lane>;
    using DStored = hn::Rebind<Stored, D>;
    static constexpr std::size_t element_bytes = sizeof(Stored);
};

struct Bytes : Widened<std::uint8_t, std::uint16_t> {
    static HWY_INLINE hn::Vec<D> load(const std::byte* from) {
        return hn::PromoteTo(D(), load_lanes(DStored(), from));
    }
    static HWY_INLINE void store(hn::Vec<D> values, std::byte* into) {
        store_lanes(DStored(), hn::TruncateTo(DStored(), values), into);
    }
};

struct BFloats : Widened<std::uint16_t, float> {
    using DU = hn::RebindToUnsigned<D>;

    static HWY_INLINE hn::Vec<D> load(const std::byte* from) {
        return hn::BitCast(D(),
                           hn::ShiftLeft<16>(hn::PromoteTo(DU(), load_lanes(DStored(), from))));
    }
    // Rounds as to_bfloat16() does; Highway's own conversion truncates.
    static HWY_INLINE void store(hn::Vec<D> values, std::byte* into) {
        const auto bits = hn::BitCast(DU(), values);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1u));
        const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(DU(), 0x7fffu)));
        const auto quieted = hn::Or(bits, hn::Set(DU(), 0x00400000u));
        // Ne will not do: on AVX it is false for NaN.
        const auto number = hn::RebindMask(DU(), hn::Eq(values, values));
        store_lanes(
            DStored(),
            hn::TruncateTo(DStored(), hn::ShiftRight<16>(hn::IfThenElse(number, rounded, quieted))),
            into);
    }
};

struct Halves : Widened<std::uint16_t, float> {
#if GUOZHUANG_NATIVE_F16
    using DHalf = hn::Rebind<hwy::float16_t, D>;

    static HWY_INLINE hn::Vec<D> load(const std::byte* from) {
        return hn::PromoteTo(D(), hn::BitCast(DHalf(), load_lanes(DStored(), from)));
    }
    static HWY_INLINE void store(hn::Vec<D> values, std::byte* into) {
        store_lanes(DStored(), hn::BitCast(DStored(), hn::DemoteTo(DHalf(), values)), into);
    }
#else
    static HWY_INLINE hn::Vec<D> load(const std::byte* from) {
        HWY_ALIGN float lanes[hn::MaxLanes(D())];
        for (std::size_t i = 0; i < hn::Lanes(D()); ++i) {
            Half half;
            std::memcpy(&half, from + i * sizeof half, sizeof half);
            lanes[i] = to_float(half);
        }
        return hn::Load(D(), lanes);
    }
    static HWY_INLINE void store(hn::Vec<D> values, std::byte* into) {
        HWY_ALIGN float lanes[hn::MaxLanes(D())];
        hn::Store(values, D(), lanes);
        for (std::size_t i = 0; i < hn::Lanes(D()); ++i) {
            const Half half = to_half(lanes[i]);
            std::memcpy(into + i * sizeof half, &half, sizeof half);
        }
    }
#endif
};

// ---- Operations on vectors.

template <class V>
inline constexpr bool is_float_vector = hwy::IsFloat<hn::TFromD<hn::DFromV<V>>>();

struct Sum {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return hn::Add(a, b);
    }
};

struct Product {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return hn::Mul(a, b);
    }
};

struct Minimum {
    /// Floats: both selections agree unless the operands are zeros or one is NaN; then their union
    /// is -0 if there is one, or a NaN.
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        if constexpr (is_float_vector<V>) {
            return hn::Or(hn::IfThenElse(hn::Lt(a, b), a, b), hn::IfThenElse(hn::Lt(b, a), b, a));
        } else {
            return hn::Min(a, b);
        }
    }
};

struct Maximum {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        if constexpr (is_float_vector<V>) {
            return hn::Neg(Minimum()(hn::Neg(a), hn::Neg(b)));
        } else {
            return hn::Max(a, b);
        }
    }
};

struct Keep {
    template <class V>
    HWY_INLINE V operator()(V a) const {
        return a;
    }
};

struct Scale {
    double factor;
    template <class V>
    HWY_INLINE V operator()(V a) const {
        const hn::DFromV<V> d;
        return hn::Mul(a, hn::Set(d, static_cast<hn::TFromD<decltype(d)>>(factor)));
    }
};

struct DivideAndScale {
    int divisor;
    Scale scale;
    template <class V>
    HWY_INLINE V operator()(V a) const {
        const hn::DFromV<V> d;
        return scale(hn::Div(a, hn::Set(d, static_cast<hn::TFromD<decltype(d)>>(divisor))));
    }
};

// ---- Loops.

/// into[i] = f(from[i]...), by whole vectors. The rest at the end goes through one padded vector,
/// and so through the same arithmetic.
template <class To, class From, class F, class... In>
HWY_INLINE void transform(std::span<std::byte> into, F f, In... from) {
    constexpr typename To::D d;
    const std::size_t step = hn::Lanes(d);
    const std::size_t count = into.size() / To::element_bytes;
    std::size_t i = 0;
    for (; i + step <= count; i += step) {
        To::store(f(From::load(from.data() + i * From::element_bytes)...),
                  into.data() + i * To::element_bytes);
    }
    if (i == count) return;
    const auto padded = [&](std::span<const std::byte> whole) {
        std::array<std::byte, hn::MaxLanes(d) * From::element_bytes> vector{};
        std::memcpy(vector.data(), whole.data() + i * From::element_bytes,
                    (count - i) * From::element_bytes);
        return vector;
    };
    std::array<std::byte, hn::MaxLanes(d) * To::element_bytes> result;
    To::store(f(From::load(padded(from).data())...), result.data());
    std::memcpy(into.data() + i * To::element_bytes, result.data(),
                (count - i) * To::element_bytes);
}

template <class To, class From, class Op>
void combine(std::span<std::byte> into, std::span<const std::byte> left,
             std::span<const std::byte> right) {
    transform<To, From>(into, Op(), left, right);
}

template <class To, class From>
void convert(std::span<std::byte> into, std::span<const std::byte> from) {
    transform<To, From>(into, Keep(), from);
}

/// Calls run(f) with the operation on vectors that finishes floats. Multiplying by the reciprocal
/// of a power of two gives the same bits as the division, several times as fast.
template <class Run>
void with_finish(const Finish& finish, const Run& run) {
    const bool is_power_of_two = (finish.divisor & (finish.divisor - 1)) == 0;
    if (finish.is_identity()) return run(Keep());
    if (finish.divisor == 1) return run(Scale{finish.scale});
    if (finish.scale == 1.0 && is_power_of_two) return run(Scale{1.0 / finish.divisor});
    run(DivideAndScale{finish.divisor, {finish.scale}});
}

template <class To, class From>
void finish_floats(std::span<std::byte> into, std::span<const std::byte> from,
                   const Finish& finish) {
    with_finish(finish, [&](auto f) { transform<To, From>(into, f, from); });
}

template <class To, class From, class Op>
void combine_and_finish_floats(std::span<std::byte> into, std::span<const std::byte> left,
                               std::span<const std::byte> right, const Finish& finish) {
    with_finish(finish, [&](auto f) {
        const auto combined = [f](auto a, auto b) { return f(Op()(a, b)); };
        transform<To, From>(into, combined, left, right);
    });
}

template <class T>
void finish_integers(std::span<std::byte> into, std::span<const std::byte> from,
                     const Finish& finish) {
    if (finish.divisor == 1) return convert<Same<T>, Same<T>>(into, from);
    // Wide holds every T and the divisor, which is positive: so C++ divides as Finish promises.
    using Wide = std::common_type_t<T, int>;
    for (std::size_t at = 0; at < into.size(); at += sizeof(T)) {
        T value;
        std::memcpy(&value, from.data() + at, sizeof value);
        value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(finish.divisor));
        std::memcpy(into.data() + at, &value, sizeof value);
    }
}

template <class T, class Format, class Op>
void combine_and_finish_integers(std::span<std::byte> into, std::span<const std::byte> left,
                                 std::span<const std::byte> right, const Finish& finish) {
    if (finish.divisor == 1) return combine<Format, Format, Op>(into, left, right);
    constexpr std::size_t block_bytes = 4096;  // which stays in the first-level cache
    for (std::size_t at = 0; at < into.size(); at += block_bytes) {
        const auto bytes = std::min(block_bytes, into.size() - at);
        const auto block = into.subspan(at, bytes);
        combine<Format, Format, Op>(block, left.subspan(at, bytes), right.subspan(at, bytes));
        finish_integers<T>(block, block, finish);
    }
}

// ---- Adasum.

/// Dot products are added up in this many lanes on every processor.
constexpr std::size_t dot_lanes = 32;

struct LaneSums {
    std::array<double, dot_lanes> ab{}, aa{}, bb{};

    template <class T>
    HWY_INLINE void add(const T* a, const T* b) {
        for (std::size_t lane = 0; lane < dot_lanes; ++lane) {
            const double x = a[lane], y = b[lane];
            ab[lane] += x * y;
            aa[lane] += x * x;
            bb[lane] += y * y;
        }
    }
};

inline double total(std::array<double, dot_lanes> sums) {
    for (std::size_t half = dot_lanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

/// The factor of one side: each side contributes half of what they share.
inline double weight(double dot, double square) {
    return square == 0 ? 1 : 1 - dot / (2 * square);
}

struct Blend {
    double left, right;
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return hn::Add(Scale{left}(a), Scale{right}(b));
    }
};

template <class T>
void adasum(std::span<std::byte> into, std::span<const std::byte> left,
            std::span<const std::byte> right) {
    const auto count = into.size() / sizeof(T);
    const auto* const a = reinterpret_cast<const T*>(left.data());
    const auto* const b = reinterpret_cast<const T*>(right.data());
    LaneSums sums;
    std::size_t i = 0;
    for (; i + dot_lanes <= count; i += dot_lanes) sums.add(a + i, b + i);
    if (i < count) {
        std::array<T, dot_lanes> rest_of_a{}, rest_of_b{};
        std::copy(a + i, a + count, rest_of_a.begin());
        std::copy(b + i, b + count, rest_of_b.begin());
        sums.add(rest_of_a.data(), rest_of_b.data());
    }
    const auto dot = total(sums.ab);
    transform<Same<T>, Same<T>>(
        into, Blend{weight(dot, total(sums.aa)), weight(dot, total(sums.bb))}, left, right);
}

CombineKernel adasum_of_target(DType dtype) {
    return dtype == DType::f64 ? adasum<double> : adasum<float>;
}

// ---- Tables.

template <class Element, class Partial, class Op>
void set_combines(Kernels& kernels) {
    kernels.combine = combine<Element, Element, Op>;
    kernels.combine_partials = combine<Partial, Partial, Op>;
    kernels.combine_wide = combine<Partial, Element, Op>;
}

template <class Element, class Partial, class Op>
void set_float_combines(Kernels& kernels) {
    set_combines<Element, Partial, Op>(kernels);
    kernels.combine_and_finish = combine_and_finish_floats<Element, Element, Op>;
    kernels.combine_partials_and_finish = combine_and_finish_floats<Element, Partial, Op>;
}

template <class T, class Format, class Op>
void set_integer_combines(Kernels& kernels) {
    set_combines<Format, Format, Op>(kernels);
    kernels.combine_and_finish = kernels.combine_partials_and_finish =
        combine_and_finish_integers<T, Format, Op>;
}

template <class Element, class Partial>
Kernels float_kernels(ReduceOp op) {
    Kernels kernels{};
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::average: set_float_combines<Element, Partial, Sum>(kernels); break;
        case ReduceOp::min: set_float_combines<Element, Partial, Minimum>(kernels); break;
        case ReduceOp::max: set_float_combines<Element, Partial, Maximum>(kernels); break;
        case ReduceOp::product: set_float_combines<Element, Partial, Product>(kernels); break;
        case ReduceOp::adasum: break;  // kernels_for has refused it
    }
    kernels.widen = convert<Partial, Element>;
    kernels.narrow = finish_floats<Element, Partial>;
    kernels.finish = finish_floats<Element, Element>;
    return kernels;
}

/// Sums and products modulo 2^bits are the same for signed and unsigned numbers.
template <class T>
Kernels integer_kernels(ReduceOp op) {
    using Modular = Same<std::make_unsigned_t<T>>;
    using Factors = std::conditional_t<sizeof(T) == 1, Bytes, Modular>;
    Kernels kernels{};
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::average: set_integer_combines<T, Modular, Sum>(kernels); break;
        case ReduceOp::min: set_integer_combines<T, Same<T>, Minimum>(kernels); break;
        case ReduceOp::max: set_integer_combines<T, Same<T>, Maximum>(kernels); break;
        case ReduceOp::product: set_integer_combines<T, Factors, Product>(kernels); break;
        case ReduceOp::adasum: break;  // kernels_for has refused it
    }
    kernels.widen = convert<Modular, Modular>;
    kernels.narrow = kernels.finish = finish_integers<T>;
    return kernels;
}

Kernels kernels_of_target(DType dtype, ReduceOp op) {
    switch (dtype) {
        case DType::u8:
        // On 0 and 1, min is "and", max is "or".
        case DType::boolean: return integer_kernels<std::uint8_t>(op);
        case DType::i8: return integer_kernels<std::int8_t>(op);
        case DType::i16: return integer_kernels<std::int16_t>(op);
        case DType::i32: return integer_kernels<std::int32_t>(op);
        case DType::i64: return integer_kernels<std::int64_t>(op);
        case DType::u16: return integer_kernels<std::uint16_t>(op);
        case DType::u32: return integer_kernels<std::uint32_t>(op);
        case DType::u64: return integer_kernels<std::uint64_t>(op);
        case DType::f16: return float_kernels<Halves, Same<float>>(op);
        case DType::bf16: return float_kernels<BFloats, Same<float>>(op);
        case DType::f32: return float_kernels<Same<float>, Same<float>>(op);
        case DType::f64: return float_kernels<Same<double>, Same<double>>(op);
    }
    return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace guozhuang::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace guozhuang::device {

HWY_EXPORT(kernels_of_target);
HWY_EXPORT(adasum_of_target);

Kernels kernels_for(DType dtype, ReduceOp op) {
    if (dtype == DType::boolean && op != ReduceOp::min && op != ReduceOp::max) {
        throw Error(
            ErrorCode::invalid_argument,
            "reduce op '" + std::string(name_of(op)) +
                "' is not defined on bool; use min (and), max (or), or convert to u8 first");
    }
    if (op == ReduceOp::adasum)
        throw Error(ErrorCode::invalid_argument,
                    "adasum weighs whole tensors and is no reduction of elements");
    return HWY_DYNAMIC_DISPATCH(kernels_of_target)(dtype, op);
}

CombineKernel adasum_for(DType dtype) {
    if (!is_floating(dtype))
        throw Error(ErrorCode::invalid_argument,
                    "adasum is not defined on " + std::string(name_of(dtype)));
    return HWY_DYNAMIC_DISPATCH(adasum_of_target)(dtype);
}

}  // namespace guozhuang::device
#endif
