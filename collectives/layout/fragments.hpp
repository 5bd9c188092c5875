#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace guozhuang {

/// Size of a cache line. Fragments begin at one, so that accesses are wide.
inline constexpr std::size_t line_bytes = 64;

/// A part of a tensor.
struct Fragment {
    std::size_t tensor = 0;  ///< its index
    std::size_t first = 0, bytes = 0;
    friend bool operator==(const Fragment&, const Fragment&) = default;
};

/// Bytes that a fragment takes in a chunk: whole cache lines, so that no two fragments share one.
std::size_t room_for(const Fragment& fragment) noexcept;

/// Cuts the first bytes off the memory and returns them. `memory` then begins at the next cache
/// line.
std::span<std::byte> take(std::span<std::byte>& memory, std::size_t bytes);

/// Returns the part of the memory that the fragment covers: shorter, or empty, if the memory ends
/// before the fragment does.
std::span<std::byte> part_of(std::span<std::byte> memory, const Fragment& fragment);

/// One of this many blocks of the memory, all of the same number of cache lines; the last ones may
/// be shorter, or empty.
std::span<std::byte> block_of(std::span<std::byte> memory, int block, int blocks);

/// Cuts tensors of these sizes into chunks of at most `chunk_bytes`, a multiple of every element's
/// size. A tensor is cut at multiples of `chunk_bytes` from its beginning, whatever other tensors
/// there are, so that its sums do not depend on them; the remainders of tensors share chunks.
std::vector<std::vector<Fragment>> chunks_of(std::span<const std::size_t> tensors,
                                             std::size_t chunk_bytes);

}  // namespace guozhuang
