#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "device/host/kernels.hpp"
#include "device/reduction.hpp"

namespace guozhuang::device {

/// The Reduce of this processor. A small immutable value that allocates nothing; any thread may use
/// it.
class HostReduce final : public Reduce {
public:
    /// Throws Error(invalid_argument) for an op that the dtype does not have, for less than one
    /// contributor, and for a postscale other than 1 on integers and boolean.
    explicit HostReduce(const Reduction& reduction);

    std::size_t element_bytes() const noexcept override { return element_bytes_; }
    std::size_t partial_bytes() const noexcept override { return partial_bytes_; }
    void combine(std::span<std::byte> into, std::span<const std::byte> left,
                 std::span<const std::byte> right) const override;
    void finish(std::span<std::byte> elements) const override;
    void widen(std::span<std::byte> partials, std::span<const std::byte> elements) const override;
    void combine_partials(std::span<std::byte> into, std::span<const std::byte> left,
                          std::span<const std::byte> right) const override;
    void narrow(std::span<std::byte> elements, std::span<const std::byte> partials) const override;
    /// Takes at least one input. Combines and finishes two inputs in one pass, more in blocks that
    /// stay in the first-level cache; needs 4 KiB of stack for each level of the tree.
    void combine_tree(std::span<std::byte> into,
                      std::span<const std::span<const std::byte>> inputs) const override;

private:
    struct Block;
    void combine_block(std::span<std::byte> into,
                       std::span<const std::span<const std::byte>> inputs,
                       const Block& block) const;
    std::span<const std::byte> subtree(std::span<std::byte> scratch,
                                       std::span<const std::span<const std::byte>> inputs,
                                       const Block& block) const;

    Kernels kernels_;
    Finish finish_;
    std::size_t element_bytes_;
    std::size_t partial_bytes_;
};

/// elements *= factor, in place, in the tensor's own type (f16 and bf16 through f32, rounded once).
/// Throws Error(invalid_argument) for a factor other than 1 on integers and boolean. Thread-safe.
void scale(DType dtype, std::span<std::byte> elements, double factor);

}  // namespace guozhuang::device
