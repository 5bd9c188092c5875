#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>
#include <span>

#include "wire/shm/byte_ring.hpp"

namespace guozhuang::wire {

/// The rings of a host's ranks, one for each sender and receiver. A view; does not own the memory.
struct MessageRings {
    std::span<std::byte> memory;  ///< aligned as a ByteRing is
    int ranks = 1;

    static constexpr std::size_t bytes_for(int ranks) noexcept {
        return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks) *
               (sizeof(ByteRing) + ring_bytes(ranks));
    }
    /// Makes them, once.
    void initialise() const {
        for (int from = 0; from < ranks; ++from)
            for (int to = 0; to < ranks; ++to) ::new (at(from, to)) ByteRing;
    }
    ByteRing& ring(int from, int to) const noexcept {
        return *reinterpret_cast<ByteRing*>(at(from, to));
    }
    std::span<std::byte> bytes(int from, int to) const noexcept {
        return {at(from, to) + sizeof(ByteRing), ring_bytes(ranks)};
    }

private:
    /// Bytes for all messages to one rank, but at least the minimum for each sender.
    static constexpr std::size_t inbox_bytes = std::size_t{32} << 10,
                                 least_ring_bytes = std::size_t{1} << 10;

    static constexpr std::size_t ring_bytes(int ranks) noexcept {
        return std::max(std::bit_floor(inbox_bytes / static_cast<std::size_t>(ranks)),
                        least_ring_bytes);
    }
    std::byte* at(int from, int to) const noexcept {
        return memory.data() +
               static_cast<std::size_t>(to * ranks + from) * (sizeof(ByteRing) + ring_bytes(ranks));
    }
};

}  // namespace guozhuang::wire
