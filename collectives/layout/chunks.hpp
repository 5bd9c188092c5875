#pragma once

#include <algorithm>
#include <cstddef>

#include "collectives/layout/blocks.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang {

/// How many chunks an algorithm has in flight at least: one to reduce, one to send, one to receive.
inline constexpr std::size_t least_in_flight = 3;

/// How blocks are cut into chunks: chunk k is the k-th segment of every block, so that a chunk goes
/// all the way through an algorithm while it is hot in cache. Segments are even, at most
/// `segment_bytes` (a multiple of 64, at least 64) and whole elements. As many chunks are in flight
/// as fill the window of the wire. Every rank computes the same.
class Chunks {
public:
    Chunks(std::size_t largest_block_bytes, std::size_t segment_bytes,
           std::size_t window_bytes = 0) noexcept {
        const auto limit =
            std::max(segment_bytes / scratch_alignment * scratch_alignment, scratch_alignment);
        count_ = (largest_block_bytes + limit - 1) / limit;
        segment_bytes_ = count_ == 0 ? 0 : padded((largest_block_bytes + count_ - 1) / count_);
        slots_ = std::min(count_, std::max(least_in_flight, window_bytes / limit));
    }

    std::size_t count() const noexcept { return count_; }
    /// How many chunks are in flight, each in its own slot.
    std::size_t slots() const noexcept { return slots_; }
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
    std::size_t slots_ = 0;
};

/// Takes the chunks through an algorithm of `steps` steps: start(slot, chunk) begins one,
/// advance(slot, step) ends a step and begins the next. The slots take turns, so while one chunk is
/// reduced the messages of the others travel. The order of all calls is the same on every rank, so
/// messages match.
template <class Start, class Advance>
void keep_in_flight(const Chunks& chunks, int steps, const Start& start, const Advance& advance) {
    const auto count = chunks.count(), depth = chunks.slots();
    for (std::size_t slot = 0; slot < depth; ++slot) start(slot, slot);
    for (std::size_t first = 0; first < count; first += depth) {
        for (int step = 0; step < steps; ++step) {
            for (std::size_t slot = 0; slot < depth && first + slot < count; ++slot) {
                advance(slot, step);
                const auto next = first + depth + slot;
                if (step + 1 == steps && next < count) start(slot, next);
            }
        }
    }
}

}  // namespace guozhuang
