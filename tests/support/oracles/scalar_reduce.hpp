#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "collectives/concepts/reduce.hpp"

namespace guozhuang::test {

/// A number format: its layout in memory, and the type in which it is summed.
template <class T>
struct Plain {
    using Element = T;
    using Partial = T;
    static Partial widen(Element element) { return element; }
    static Element narrow(Partial partial) { return partial; }
};

using I64 = Plain<std::int64_t>;
using F32 = Plain<float>;

/// HalfLike stands for the 16-bit floats, f16 and bf16: an element is the upper half of an f32, the
/// lower half cut off, so that sums round visibly; they are kept in f32, as those of 16-bit floats
/// are.
struct HalfLike {
    using Element = std::uint16_t;
    using Partial = float;
    static Partial widen(Element element) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(element) << 16);
    }
    static Element narrow(Partial partial) {
        return static_cast<Element>(std::bit_cast<std::uint32_t>(partial) >> 16);
    }
};

/// Sums one element after another, then divides: the plainest Reduce there is.
template <class Format>
class ScalarReduce final : public Reduce {
public:
    using Element = typename Format::Element;
    using Partial = typename Format::Partial;

    explicit ScalarReduce(Partial divisor = 1) : divisor_(divisor) {}

    std::size_t element_bytes() const noexcept override { return sizeof(Element); }
    std::size_t partial_bytes() const noexcept override { return sizeof(Partial); }

    void combine(std::span<std::byte> into, std::span<const std::byte> left,
                 std::span<const std::byte> right) const override {
        for (std::size_t at = 0; at < into.size(); at += sizeof(Element)) {
            store(into, at,
                  Format::narrow(Format::widen(load<Element>(left, at)) +
                                 Format::widen(load<Element>(right, at))));
        }
    }
    void finish(std::span<std::byte> elements) const override {
        for (std::size_t at = 0; at < elements.size(); at += sizeof(Element)) {
            store(elements, at,
                  Format::narrow(Format::widen(load<Element>(elements, at)) / divisor_));
        }
    }
    void widen(std::span<std::byte> partials, std::span<const std::byte> elements) const override {
        for (std::size_t i = 0; i < elements.size() / sizeof(Element); ++i) {
            store(partials, i * sizeof(Partial),
                  Format::widen(load<Element>(elements, i * sizeof(Element))));
        }
    }
    void combine_partials(std::span<std::byte> into, std::span<const std::byte> left,
                          std::span<const std::byte> right) const override {
        for (std::size_t at = 0; at < into.size(); at += sizeof(Partial)) {
            store(into, at,
                  static_cast<Partial>(load<Partial>(left, at) + load<Partial>(right, at)));
        }
    }
    void narrow(std::span<std::byte> elements, std::span<const std::byte> partials) const override {
        for (std::size_t i = 0; i < elements.size() / sizeof(Element); ++i) {
            store(elements, i * sizeof(Element),
                  Format::narrow(load<Partial>(partials, i * sizeof(Partial)) / divisor_));
        }
    }
    void combine_tree(std::span<std::byte> into,
                      std::span<const std::span<const std::byte>> inputs) const override {
        for (std::size_t at = 0; at < into.size(); at += sizeof(Element)) {
            store(into, at, Format::narrow(tree(inputs, at) / divisor_));
        }
    }

private:
    template <class T>
    static T load(std::span<const std::byte> from, std::size_t at) {
        T value;
        std::memcpy(&value, from.data() + at, sizeof value);
        return value;
    }
    template <class T>
    static void store(std::span<std::byte> into, std::size_t at, T value) {
        std::memcpy(into.data() + at, &value, sizeof value);
    }
    static Partial tree(std::span<const std::span<const std::byte>> inputs, std::size_t at) {
        if (inputs.size() == 1) return Format::widen(load<Element>(inputs[0], at));
        const auto half = std::bit_floor(inputs.size() - 1);
        return static_cast<Partial>(tree(inputs.first(half), at) + tree(inputs.subspan(half), at));
    }

    Partial divisor_;
};

/// Adds up. Sum<T>(n) divides the sum by n.
template <class T>
using Sum = ScalarReduce<Plain<T>>;

}  // namespace guozhuang::test
