// Chunks of tensors on a device, on their way through the halves of arenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/concepts/arena_site.hpp"
#include "collectives/layout/fragments.hpp"

namespace guozhuang::arenas {

/// Enqueues this many chunks: fill 0, fill 1, move 0, fill 2, move 1, ... `fill` and `move` are
/// called with the chunk's index in its bundle and its number among all chunks; it is in half
/// number % 2.
template <ArenaSite S, class Fill, class Move>
void enqueue_chunks(S& site, std::size_t chunks, const Fill& fill, const Move& move) {
    const auto first = site.take_numbers(chunks);
    const auto number_of = [&](std::size_t chunk) {
        return first + static_cast<std::uint32_t>(chunk);
    };
    if (chunks > 0) fill(std::size_t{0}, number_of(0));
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (chunk + 1 < chunks) fill(chunk + 1, number_of(chunk + 1));
        move(chunk, number_of(chunk));
    }
}

/// The tensors of an in-place operation, copied chunk by chunk to other memory and back. The
/// fragments of a chunk follow each other, each on whole cache lines: the same layout on all ranks,
/// wherever their tensors are.
template <ArenaSite S>
class PackedTensors {
public:
    /// Adjacent fragments of one dtype, with the padding between them.
    struct Run {
        DType dtype = DType::f32;
        std::size_t first = 0, bytes = 0;
        std::span<std::byte> in(std::span<std::byte> chunk) const {
            return chunk.subspan(first, bytes);
        }
    };

    explicit PackedTensors(S& site) : site_(site) {
        std::vector<std::size_t> sizes;
        for (std::size_t i = 0; i < site.tensors(); ++i)
            sizes.push_back(site.tensor(i).memory.size());
        chunks_ = chunks_of(sizes, site.half_bytes());
    }

    std::size_t chunks() const noexcept { return chunks_.size(); }
    std::vector<Run> runs(std::size_t chunk) const {
        std::vector<Run> runs;
        for_each(chunk, [&](const SiteTensor& tensor, std::span<std::byte> part, std::size_t at) {
            if (runs.empty() || runs.back().dtype != tensor.dtype)
                runs.push_back({tensor.dtype, at, 0});
            runs.back().bytes = at + part.size() - runs.back().first;
        });
        return runs;
    }
    /// Bytes of memory that the chunk needs.
    std::size_t bytes(std::size_t chunk) const {
        const auto last = runs(chunk).back();
        return last.first + last.bytes;
    }
    void put(std::size_t chunk, std::span<std::byte> memory) const {
        site_.copy(copies_to(memory, chunk));
    }
    void put_prescaled(std::size_t chunk, std::span<std::byte> memory) const {
        site_.copy_prescaled(copies_to(memory, chunk));
    }
    void get(std::size_t chunk, std::span<const std::byte> memory) const {
        typename S::Copies copies;
        for_each(chunk, [&](const SiteTensor& tensor, std::span<std::byte> part, std::size_t at) {
            copies.push_back({part, memory.subspan(at, part.size()), tensor.dtype});
        });
        site_.copy(copies);
    }

private:
    /// Calls visit(tensor, part, at) for each fragment. Fragments that touch are copied separately:
    /// a device copy must not reach from one allocation into the next.
    template <class Visit>
    void for_each(std::size_t chunk, const Visit& visit) const {
        std::size_t at = 0;
        for (const auto& fragment : chunks_[chunk]) {
            const auto tensor = site_.tensor(fragment.tensor);
            visit(tensor, part_of(tensor.memory, fragment), at);
            at += room_for(fragment);
        }
    }
    typename S::Copies copies_to(std::span<std::byte> memory, std::size_t chunk) const {
        typename S::Copies copies;
        for_each(chunk, [&](const SiteTensor& tensor, std::span<std::byte> part, std::size_t at) {
            copies.push_back({memory.subspan(at, part.size()), part, tensor.dtype});
        });
        return copies;
    }

    S& site_;
    std::vector<std::vector<Fragment>> chunks_;
};

}  // namespace guozhuang::arenas
