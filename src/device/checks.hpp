#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <guozhuang/types.hpp>
#include <span>
#include <string>

#include "device/copy.hpp"
#include "device/reduction.hpp"
#include "device/sum_order.hpp"

/// The checks of arguments that all drivers make, so that the tests' fake refuses what CUDA would.
/// Header-only, because the CUDA plugin links nothing of the library but public symbols.
namespace guozhuang::device {

inline void check_device(int device, int count) {
    if (device >= 0 && device < count) return;
    throw Error(
        ErrorCode::invalid_argument,
        "device " + std::to_string(device) + " does not exist; there are " + std::to_string(count));
}

inline void check_same_size(std::span<const std::byte> into, std::span<const std::byte> from) {
    if (into.size() == from.size()) return;
    throw Error(ErrorCode::invalid_argument, "sizes differ: " + std::to_string(into.size()) +
                                                 " bytes from " + std::to_string(from.size()) +
                                                 " bytes");
}

inline void check_fill(std::span<const std::byte> memory, std::span<const std::byte> element) {
    const auto size = element.size();
    const bool is_element = size == 1 || size == 2 || size == 4 || size == 8;
    if (is_element && memory.size() % size == 0 &&
        reinterpret_cast<std::uintptr_t>(memory.data()) % size == 0)
        return;
    throw Error(ErrorCode::invalid_argument, std::to_string(memory.size()) +
                                                 " bytes are not whole, aligned elements of " +
                                                 std::to_string(size) + " bytes");
}

/// Whether it consists of whole, aligned elements.
inline bool are_elements(DType dtype, std::span<const std::byte> memory) noexcept {
    return memory.size() % size_of(dtype) == 0 &&
           reinterpret_cast<std::uintptr_t>(memory.data()) % size_of(dtype) == 0;
}

/// Whole, aligned elements of a floating dtype.
inline void check_floating(DType dtype, std::span<const std::byte> memory) {
    if (is_floating(dtype) && are_elements(dtype, memory)) return;
    throw Error(
        ErrorCode::invalid_argument,
        "not whole, aligned elements of a floating dtype, but of " + std::string(name_of(dtype)));
}

inline void check_copies(std::span<const Copy> copies, const Finish& finish) {
    for (const auto& [to, from, dtype] : copies) {
        check_same_size(to, from);
        if (finish.is_identity()) continue;
        const bool is_divided = (dtype == DType::i64 || dtype == DType::u64) && finish.scale == 1;
        if ((is_divided || is_floating(dtype)) && finish.divisor >= 1 && are_elements(dtype, to) &&
            are_elements(dtype, from))
            continue;
        throw Error(ErrorCode::invalid_argument,
                    "not whole, aligned elements that a copy divides by " +
                        std::to_string(finish.divisor) + " and scales by " +
                        std::to_string(finish.scale) + ", but of " + std::string(name_of(dtype)));
    }
}

inline void check_scratch(std::span<const std::byte> scratch) {
    if (scratch.size() >= SumOrder::scratch_bytes) return;
    throw Error(ErrorCode::invalid_argument,
                "a sum needs " + std::to_string(SumOrder::scratch_bytes) + " bytes of scratch");
}

inline void check_reduction(const Reduction& reduction,
                            std::span<const std::span<std::byte>> outputs,
                            std::span<const std::span<const std::byte>> inputs) {
    const auto [op, dtype, contributors, postscale] = reduction;
    const auto is_possible = [](std::size_t count) {
        return count > 0 && count <= Reduction::most_inputs;
    };
    if (!is_possible(outputs.size()) || !is_possible(inputs.size()))
        throw Error(ErrorCode::invalid_argument,
                    "a reduction of " + std::to_string(inputs.size()) + " inputs to " +
                        std::to_string(outputs.size()) + "; there can be 1 to " +
                        std::to_string(Reduction::most_inputs));
    const auto check = [&](std::span<const std::byte> memory) {
        check_same_size(outputs.front(), memory);
        if (!are_elements(dtype, memory))
            throw Error(ErrorCode::invalid_argument,
                        "not whole, aligned elements of " + std::string(name_of(dtype)));
    };
    for (const auto& memory : outputs) check(memory);
    for (const auto& memory : inputs) check(memory);
    if (op == ReduceOp::adasum)
        throw Error(ErrorCode::invalid_argument,
                    "adasum weighs whole tensors and is no reduction of elements");
    if (dtype == DType::boolean && op != ReduceOp::min && op != ReduceOp::max)
        throw Error(
            ErrorCode::invalid_argument,
            std::string(name_of(op)) + " is not defined on bool; min is \"and\", max is \"or\"");
    if (contributors < 1 || (postscale != 1 && !is_floating(dtype)))
        throw Error(ErrorCode::invalid_argument, "a reduction of " + std::string(name_of(dtype)) +
                                                     " divided by " + std::to_string(contributors) +
                                                     " and scaled by " + std::to_string(postscale));
}

}  // namespace guozhuang::device
