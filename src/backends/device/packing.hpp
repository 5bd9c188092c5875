#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>
#include <vector>

#include "backends/device/bundle_work.hpp"
#include "backends/device/chunks.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// How a chunk's fragments of tensors in place lie in memory of its own: one after the other, each
/// on whole cache lines, so alike on all ranks, wherever their tensors are.
struct Packing {
    /// A fragment. Fragments that touch are copied separately: a CUDA copy must not reach from one
    /// allocation into the next.
    struct Copy {
        DType dtype = DType::f32;
        std::span<std::byte> tensor;
        std::size_t first = 0;  ///< where they lie
    };
    /// Elements of one type, with what lies between them.
    struct Run {
        DType dtype = DType::f32;
        std::size_t first = 0, bytes = 0;
        std::span<std::byte> in(std::span<std::byte> chunk) const {
            return chunk.subspan(first, bytes);
        }
    };
    std::vector<Copy> copies;
    std::vector<Run> runs;
};

Packing packed(const engine::Bundle& bundle, std::span<const Fragment> fragments);

/// The tensors in place of a bundle, copied to memory for chunks of them and back.
class PackedTensors {
public:
    PackedTensors(const BundleWork& work, std::size_t chunk_bytes);

    std::size_t chunks() const noexcept { return packings_.size(); }
    std::span<const Packing::Run> runs(std::size_t chunk) const { return packings_[chunk].runs; }
    /// Bytes of memory that the chunk needs.
    std::size_t bytes(std::size_t chunk) const {
        const auto& last = packings_[chunk].runs.back();
        return last.first + last.bytes;
    }
    void put(std::size_t chunk, std::span<std::byte> memory) const;
    void put_prescaled(std::size_t chunk, std::span<std::byte> memory) const;
    void get(std::size_t chunk, std::span<const std::byte> memory) const;

private:
    BundleWork::Copies to(std::span<std::byte> memory, std::size_t chunk) const;

    const BundleWork work_;
    std::vector<Packing> packings_;
};

}  // namespace guozhuang::backends
