#include "support/tensors/tensors.hpp"

#include "support/tensors/device_memory.hpp"

namespace guozhuang::test {

TensorView Tensor::view() {
    auto* const memory = memory_of(device);
    if (memory == nullptr) return {bytes.data(), dtype, shape, device};
    on_device = memory->put(bytes);
    return {on_device.get(), dtype, shape, device};
}

void Tensor::fetch() {
    if (on_device) device_memory()->get(bytes, on_device.get());
}

double value_of_bits(std::uint16_t bits, int mantissa_bits) {
    const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7fff) >> mantissa_bits,
              mantissa = bits & ((1 << mantissa_bits) - 1);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                           : std::ldexp(mantissa + (1 << mantissa_bits),
                                                        exponent - bias - mantissa_bits);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::int64_t integer_at(const Tensor& tensor, std::size_t i) {
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

double real_at(const Tensor& tensor, std::size_t i) {
    switch (tensor.dtype) {
        case DType::f16: return value_of_bits(tensor.load<std::uint16_t>(i), 10);
        case DType::bf16: return value_of_bits(tensor.load<std::uint16_t>(i), 7);
        case DType::f32: return tensor.load<float>(i);
        default: return tensor.load<double>(i);
    }
}

Tensor random_tensor(DType dtype, Shape shape, std::uint64_t seed) {
    Tensor tensor(dtype, std::move(shape));
    Numbers numbers(seed);
    for (std::size_t i = 0, count = tensor.count(); i < count; ++i) {
        const auto bits = numbers.next();
        const auto half = [&](int bias, int mantissa_bits) {
            const auto exponent = static_cast<unsigned>(bias) - static_cast<unsigned>(bits & 1);
            return static_cast<std::uint16_t>((bits & 0x8000) | (exponent << mantissa_bits) |
                                              ((bits >> 32) & ((1u << mantissa_bits) - 1)));
        };
        const double real = (bits & 2 ? 1 : -1) *
                            std::ldexp(static_cast<double>((bits >> 11) | (std::uint64_t{1} << 52)),
                                       bits & 1 ? -53 : -52);
        switch (dtype) {
            case DType::boolean: tensor.store<std::uint8_t>(i, (bits & 1) != 0); break;
            case DType::f16: tensor.store(i, half(15, 10)); break;
            case DType::bf16: tensor.store(i, half(127, 7)); break;
            case DType::f32: tensor.store(i, static_cast<float>(real)); break;
            case DType::f64: tensor.store(i, real); break;
            default:
                std::memcpy(tensor.bytes.data() + i * size_of(dtype), &bits, size_of(dtype));
                break;
        }
    }
    return tensor;
}

}  // namespace guozhuang::test
