#pragma once

#include <algorithm>
#include <cstddef>

#include "collectives/layout/blocks.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang {

/// How many chunks an algorithm has in flight: one to reduce, one to send, one to receive.
inline constexpr std::size_t chunks_in_flight = 3;

/// How blocks are cut into chunks: chunk k is the k-th segment of every block, so that a chunk goes
/// all the way through an algorithm while it is hot in cache. Segments are even, at most
/// `segment_bytes` (a multiple of 64, at least 64) and whole elements. Every rank computes the
/// same.
class Chunks {
public:
    Chunks(std::size_t largest_block_bytes, std::size_t segment_bytes) noexcept {
        const auto limit =
            std::max(segment_bytes / scratch_alignment * scratch_alignment, scratch_alignment);
        count_ = (largest_block_bytes + limit - 1) / limit;
        segment_bytes_ = count_ == 0 ? 0 : padded((largest_block_bytes + count_ - 1) / count_);
    }

    std::size_t count() const noexcept { return count_; }
    /// Slots in use by keep_in_flight.
    std::size_t slots() const noexcept { return std::min(count_, chunks_in_flight); }
    /// Bytes of the longest segment, in whole cache lines: the room that one needs.
    std::size_t segment_bytes() const noexcept { return segment_bytes_; }

    /// The segment of a block of `block_bytes` in a chunk; empty if the block ends before it.
    Segment segment(int block, std::size_t block_bytes, std::size_t chunk) const noexcept {
        const auto offset = std::min(chunk * segment_bytes_, block_bytes);
        return {block, offset, std::min(segment_bytes_, block_bytes - offset)};
    }

private:
    std::size_t count_ = 0;
    std::size_t segment_bytes_ = 0;
};

/// Takes chunks 0, 1, ... through an algorithm of `steps` steps, with up to chunks_in_flight of
/// them in flight, each in its own slot: start(slot, chunk) begins one, advance(slot, step) ends a
/// step and begins the next. The slots take turns, so while one chunk is reduced the messages of
/// the others travel. The order of all calls is the same on every rank, so messages match.
template <class Start, class Advance>
void keep_in_flight(std::size_t chunks, int steps, const Start& start, const Advance& advance) {
    constexpr auto depth = chunks_in_flight;
    for (std::size_t slot = 0; slot < std::min(depth, chunks); ++slot) start(slot, slot);
    for (std::size_t first = 0; first < chunks; first += depth) {
        for (int step = 0; step < steps; ++step) {
            for (std::size_t slot = 0; slot < depth && first + slot < chunks; ++slot) {
                advance(slot, step);
                const auto next = first + depth + slot;
                if (step + 1 == steps && next < chunks) start(slot, next);
            }
        }
    }
}

}  // namespace guozhuang
