#pragma once

#include <cstddef>
#include <span>

namespace guozhuang {

/// The arithmetic of one reduction, for a dtype, an op and a finish (division for average, then
/// postscale). Pure and thread-safe.
///
/// There are two number formats: *elements*, as in tensors, and *partials*, in which sums are kept
/// (f32 for f16 and bf16, otherwise the element type). An algorithm that keeps or sends partials
/// rounds once, at the end; one that sends elements rounds at each hop. All spans of one call hold
/// the same number of elements, perhaps none, and are aligned at least to the element size.
class Reduce {
public:
    virtual ~Reduce() = default;

    virtual std::size_t element_bytes() const noexcept = 0;
    virtual std::size_t partial_bytes() const noexcept = 0;

    /// into = left (op) right, on elements. `into` may be `left` or `right`.
    virtual void combine(std::span<std::byte> into, std::span<const std::byte> left,
                         std::span<const std::byte> right) const = 0;
    /// elements = finish(elements), in place. The last step of an algorithm that works on elements.
    virtual void finish(std::span<std::byte> elements) const = 0;

    /// partials = elements, converted.
    virtual void widen(std::span<std::byte> partials,
                       std::span<const std::byte> elements) const = 0;
    /// into = left (op) right, on partials. `into` may be `left` or `right`.
    virtual void combine_partials(std::span<std::byte> into, std::span<const std::byte> left,
                                  std::span<const std::byte> right) const = 0;
    /// elements = finish(partials), rounded once.
    virtual void narrow(std::span<std::byte> elements,
                        std::span<const std::byte> partials) const = 0;

    /// into = finish(all inputs, combined in partials along the balanced binary tree over their
    /// indices, split at the largest power of two below the count), rounded once. `into` may be one
    /// of the inputs. The same bits as by widen, combine_partials and narrow in that order.
    virtual void combine_tree(std::span<std::byte> into,
                              std::span<const std::span<const std::byte>> inputs) const = 0;
};

}  // namespace guozhuang
