#include "device/host/host_reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <guozhuang/error.hpp>
#include <string>

namespace guozhuang::device {
namespace {

constexpr std::size_t block_bytes = 4096;  // of partials

double checked_scale(DType dtype, double factor) {
    if (factor == 1.0 || is_floating(dtype)) return factor;
    throw Error(ErrorCode::invalid_argument, "scale " + std::to_string(factor) + " on " +
                                                 std::string(name_of(dtype)) +
                                                 ": only floating-point tensors can be scaled");
}

/// Where the tree over this many inputs (two at least) is split.
std::size_t middle_of(std::size_t inputs) noexcept {
    return std::bit_floor(inputs - 1);
}

int checked_divisor(ReduceOp op, int ranks) {
    if (ranks < 1)
        throw Error(ErrorCode::invalid_argument,
                    "a reduction over " + std::to_string(ranks) + " ranks");
    return op == ReduceOp::average ? ranks : 1;
}

}  // namespace

/// A range of the elements of every input.
struct HostReduce::Block {
    std::size_t offset;  // bytes of elements
    std::size_t bytes;   // bytes of elements
    std::span<const std::byte> of(std::span<const std::byte> input) const {
        return input.subspan(offset, bytes);
    }
};

HostReduce::HostReduce(const Reduction& reduction)
    : kernels_(kernels_for(reduction.dtype, reduction.op)),
      finish_{.divisor = checked_divisor(reduction.op, reduction.contributors),
              .scale = checked_scale(reduction.dtype, reduction.postscale)},
      element_bytes_(size_of(reduction.dtype)),
      partial_bytes_(partial_size_of(reduction.dtype)) {}

void HostReduce::combine(std::span<std::byte> into, std::span<const std::byte> left,
                         std::span<const std::byte> right) const {
    kernels_.combine(into, left, right);
}

void HostReduce::finish(std::span<std::byte> elements) const {
    if (!finish_.is_identity()) kernels_.finish(elements, elements, finish_);
}

void HostReduce::widen(std::span<std::byte> partials, std::span<const std::byte> elements) const {
    kernels_.widen(partials, elements);
}

void HostReduce::combine_partials(std::span<std::byte> into, std::span<const std::byte> left,
                                  std::span<const std::byte> right) const {
    kernels_.combine_partials(into, left, right);
}

void HostReduce::narrow(std::span<std::byte> elements, std::span<const std::byte> partials) const {
    kernels_.narrow(elements, partials, finish_);
}

void HostReduce::combine_tree(std::span<std::byte> into,
                              std::span<const std::span<const std::byte>> inputs) const {
    if (inputs.size() == 2) return kernels_.combine_and_finish(into, inputs[0], inputs[1], finish_);
    const bool is_there = inputs.size() == 1 && inputs[0].data() == into.data();
    if (is_there && finish_.is_identity()) return;  // the memory may be read-only
    const std::size_t step = block_bytes / partial_bytes_ * element_bytes_;
    for (std::size_t offset = 0; offset < into.size(); offset += step) {
        const Block block{offset, std::min(step, into.size() - offset)};
        combine_block(into.subspan(offset, block.bytes), inputs, block);
    }
}

/// `into` may be one of the inputs: the last step reads an element of a lone input before it writes
/// it, and has read all others by then.
void HostReduce::combine_block(std::span<std::byte> into,
                               std::span<const std::span<const std::byte>> inputs,
                               const Block& block) const {
    alignas(64) std::array<std::byte, block_bytes> one, other;
    if (inputs.size() == 1) return narrow(into, subtree(one, inputs, block));
    const auto middle = middle_of(inputs.size());
    const auto left = subtree(one, inputs.first(middle), block);
    const auto right = subtree(other, inputs.subspan(middle), block);
    kernels_.combine_partials_and_finish(into, left, right, finish_);
}

/// The partials of the inputs' block, combined: in `scratch`, or the lone input itself if its
/// elements are partials.
std::span<const std::byte> HostReduce::subtree(std::span<std::byte> scratch,
                                               std::span<const std::span<const std::byte>> inputs,
                                               const Block& block) const {
    if (inputs.size() == 1 && element_bytes_ == partial_bytes_) return block.of(inputs[0]);
    const auto result = scratch.first(block.bytes / element_bytes_ * partial_bytes_);
    if (inputs.size() == 1) {
        kernels_.widen(result, block.of(inputs[0]));
    } else if (inputs.size() == 2) {
        kernels_.combine_wide(result, block.of(inputs[0]), block.of(inputs[1]));
    } else {
        alignas(64) std::array<std::byte, block_bytes> other;
        const auto middle = middle_of(inputs.size());
        const auto left = subtree(scratch, inputs.first(middle), block);
        const auto right = subtree(other, inputs.subspan(middle), block);
        kernels_.combine_partials(result, left, right);
    }
    return result;
}

void scale(DType dtype, std::span<std::byte> elements, double factor) {
    if (checked_scale(dtype, factor) == 1.0) return;
    kernels_for(dtype, ReduceOp::sum).finish(elements, elements, {.divisor = 1, .scale = factor});
}

}  // namespace guozhuang::device
