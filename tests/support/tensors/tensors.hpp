#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace guozhuang::test {

/// Well mixed numbers from a seed (SplitMix64).
class Numbers {
public:
    explicit Numbers(std::uint64_t seed) noexcept : state_(seed) {}
    Numbers(std::uint64_t seed, std::uint64_t stream) noexcept
        : state_(Numbers(seed).next() ^ (stream * 0xd1342543de82ef95u)) {}

    std::uint64_t next() noexcept {
        state_ += 0x9e3779b97f4a7c15u;
        auto z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// Below the bound, which is not 0.
    std::size_t below(std::size_t bound) noexcept {
        return static_cast<std::size_t>(next() % bound);
    }

private:
    std::uint64_t state_;
};

/// A dense tensor of any dtype that the test owns.
struct Tensor {
    DType dtype = DType::f32;
    Shape shape = {0};
    std::vector<std::byte> bytes = {};
    Device device = {};
    std::shared_ptr<void> on_device = nullptr;  ///< the elements, once they are on a GPU

    Tensor() = default;
    Tensor(DType type, Shape extents)
        : dtype(type), shape(std::move(extents)), bytes(count_of(shape) * size_of(dtype)) {}

    std::size_t count() const noexcept { return count_of(shape); }
    /// Views the bytes, or, for a tensor on a GPU, a new copy of them there, which fetch() copies
    /// back.
    TensorView view();
    void fetch();

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

/// The value of 16 bits, with this many for the exponent; finite values only.
double value_of_bits(std::uint16_t bits, int mantissa_bits);

/// An element of an integer dtype or bool; of u64 its bits.
std::int64_t integer_at(const Tensor& tensor, std::size_t i);

/// An element of a floating dtype.
double real_at(const Tensor& tensor, std::size_t i);

/// Integers over their whole range, so that sums wrap; floating numbers of magnitude 0.5 to 2 and
/// either sign, with every bit of the mantissa drawn, so that sums round and products neither
/// vanish nor overflow.
Tensor random_tensor(DType dtype, Shape shape, std::uint64_t seed);

}  // namespace guozhuang::test
