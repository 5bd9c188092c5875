#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>
#include <vector>

#include "backends/device/chunks.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// How a chunk's fragments of tensors in place lie in memory of its own: one after the other, each
/// on whole cache lines, so alike on all ranks, wherever their tensors are.
struct Packing {
    /// Parts of tensors of one type that touch, there as well as here.
    struct Copy {
        DType dtype = DType::f32;
        std::span<std::byte> tensors;
        std::size_t first = 0;  ///< where they lie
    };
    /// Elements of one type, with what lies between them.
    struct Run {
        DType dtype = DType::f32;
        std::size_t first = 0, bytes = 0;
    };
    std::vector<Copy> copies;
    std::vector<Run> runs;
};

Packing packed(const engine::Bundle& bundle, std::span<const Fragment> fragments);

}  // namespace guozhuang::backends
