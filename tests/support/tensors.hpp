#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <guozhuang/tensor.hpp>
#include <utility>
#include <vector>

namespace guozhuang::test {

/// Well mixed numbers from a seed (SplitMix64).
class Numbers {
public:
    explicit Numbers(std::uint64_t seed) noexcept : state_(seed) {}
    Numbers(std::uint64_t seed, std::uint64_t stream) noexcept : state_(Numbers(seed).next() ^ (stream * 0xd1342543de82ef95u)) {}

    std::uint64_t next() noexcept {
        state_ += 0x9e3779b97f4a7c15u;
        auto z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// Below the bound, which is not 0.
    std::size_t below(std::size_t bound) noexcept { return static_cast<std::size_t>(next() % bound); }

private:
    std::uint64_t state_;
};

/// A dense tensor of any dtype that the test owns.
struct Tensor {
    DType dtype = DType::f32;
    Shape shape = {0};
    std::vector<std::byte> bytes = {};
    Device device = {};

    Tensor() = default;
    Tensor(DType type, Shape extents) : dtype(type), shape(std::move(extents)), bytes(count_of(shape) * size_of(dtype)) {}

    std::size_t count() const noexcept { return count_of(shape); }
    TensorView view() { return {bytes.data(), dtype, shape, device}; }

    template <class T>
    T load(std::size_t i) const {
        T value;
        std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
        return value;
    }
    template <class T>
    void store(std::size_t i, T value) {
        std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
};

/// The value of 16 bits with so many of them for the exponent; finite ones only.
inline double value_of_bits(std::uint16_t bits, int mantissa_bits) {
    const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                           : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// An element of an integer dtype or bool; of u64 its bits.
inline std::int64_t integer_at(const Tensor& tensor, std::size_t i) {
    switch (tensor.dtype) {
        case DType::i8: return tensor.load<std::int8_t>(i);
        case DType::i16: return tensor.load<std::int16_t>(i);
        case DType::i32: return tensor.load<std::int32_t>(i);
        case DType::i64:
        case DType::u64: return tensor.load<std::int64_t>(i);
        case DType::u16: return tensor.load<std::uint16_t>(i);
        case DType::u32: return tensor.load<std::uint32_t>(i);
        default: return tensor.load<std::uint8_t>(i);
    }
}

/// An element of a floating dtype.
inline double real_at(const Tensor& tensor, std::size_t i) {
    switch (tensor.dtype) {
        case DType::f16: return value_of_bits(tensor.load<std::uint16_t>(i), 10);
        case DType::bf16: return value_of_bits(tensor.load<std::uint16_t>(i), 7);
        case DType::f32: return tensor.load<float>(i);
        default: return tensor.load<double>(i);
    }
}

/// Integers over their whole range, so that sums wrap; floating numbers of magnitude 0.5 to 2 and either sign, with every bit of the mantissa
/// drawn, so that sums round and products neither vanish nor overflow.
inline Tensor random_tensor(DType dtype, Shape shape, std::uint64_t seed) {
    Tensor tensor(dtype, std::move(shape));
    Numbers numbers(seed);
    for (std::size_t i = 0, count = tensor.count(); i < count; ++i) {
        const auto bits = numbers.next();
        const auto half = [&](int bias, int mantissa_bits) {
            const auto exponent = static_cast<unsigned>(bias) - static_cast<unsigned>(bits & 1);
            return static_cast<std::uint16_t>((bits & 0x8000) | (exponent << mantissa_bits) | ((bits >> 32) & ((1u << mantissa_bits) - 1)));
        };
        const double real =
            (bits & 2 ? 1 : -1) * std::ldexp(static_cast<double>((bits >> 11) | (std::uint64_t{1} << 52)), bits & 1 ? -53 : -52);
        switch (dtype) {
            case DType::boolean: tensor.store<std::uint8_t>(i, (bits & 1) != 0); break;
            case DType::f16: tensor.store(i, half(15, 10)); break;
            case DType::bf16: tensor.store(i, half(127, 7)); break;
            case DType::f32: tensor.store(i, static_cast<float>(real)); break;
            case DType::f64: tensor.store(i, real); break;
            default: std::memcpy(tensor.bytes.data() + i * size_of(dtype), &bits, size_of(dtype)); break;
        }
    }
    return tensor;
}

}  // namespace guozhuang::test
