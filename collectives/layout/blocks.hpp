#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace guozhuang {

/// Bytes [offset, offset + bytes) of one block: what travels as one message.
struct Segment {
    int block = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
};

/// The unit that is cut into blocks: block b is its b-th 1/count.
enum class Cut : std::uint8_t {
    /// Each tensor, so that an element's block depends only on its tensor. For algorithms that sum
    /// each block in a different order: then fusion never changes a sum.
    tensors,
    /// The bundle, one tensor after the other: that gives fewer and longer runs. For algorithms
    /// that sum all blocks in one order.
    bundle
};

/// A bundle (several tensors moved as one) cut into blocks, without copying it.
///
/// Cuts are at element boundaries; the first `elements % count` slices of a unit have one element
/// more, so block 0 is the largest. A block is a list of *runs*, contiguous spans of the tensors'
/// memory; neighbours in memory are one run. Reusable: assign() computes nothing if the last cut
/// was the same, and allocates only while it grows. Not thread-safe against assign(); the tensors'
/// memory must outlive the use.
class Blocks {
public:
    Blocks() = default;
    Blocks(std::span<const std::span<std::byte>> tensors, std::size_t element_bytes, int count,
           Cut cut = Cut::tensors) {
        assign(tensors, element_bytes, count, cut);
    }

    void assign(std::span<const std::span<std::byte>> tensors, std::size_t element_bytes, int count,
                Cut cut = Cut::tensors);
    /// Instead of cutting, takes these blocks, of any lengths.
    void assign_blocks(std::span<const std::span<std::byte>> blocks);

    int count() const noexcept { return static_cast<int>(bytes_.size()); }
    std::size_t element_bytes() const noexcept { return element_bytes_; }
    /// Bytes of a block; 0 for a block beyond the last (a rank that owns none).
    std::size_t bytes(int block) const noexcept {
        return block < count() ? bytes_[static_cast<std::size_t>(block)] : 0;
    }
    std::size_t largest_bytes() const noexcept {
        return bytes_.empty() ? 0 : std::ranges::max(bytes_);
    }
    std::size_t total_bytes() const noexcept { return total_bytes_; }

    /// Whether each block lies in one run, and so each segment in place.
    bool are_runs() const noexcept {
        return std::ranges::none_of(runs_, [](const Run& run) { return run.offset > 0; });
    }

    /// The whole of a block.
    Segment whole(int block) const noexcept { return {block, 0, bytes(block)}; }

    /// The tensors' own memory of a segment that lies in one run; empty if it spans several.
    std::span<std::byte> in_place(const Segment& segment) const noexcept;
    /// Where a segment can be received: in place, or otherwise at the front of `room`, from which
    /// scatter() takes it.
    std::span<std::byte> landing(const Segment& segment, std::span<std::byte> room) const noexcept;
    /// The segment's bytes to send: in place, or otherwise copied to the front of `room`.
    std::span<std::byte> gather(const Segment& segment, std::span<std::byte> room) const noexcept;
    /// Puts a segment's new bytes where they belong; nothing to do if they are there already.
    void scatter(const Segment& segment, std::span<const std::byte> from) const noexcept;

    /// Calls visit(run, at) for each run of the segment, in order: `at` is the run's first byte
    /// counted from the segment's start.
    template <class Visit>
    void for_each_run(const Segment& segment, Visit&& visit) const {
        std::size_t at = 0;
        for (const Run* run = find(segment); at < segment.bytes; ++run) {
            const auto skip = segment.offset + at - run->offset;
            const auto portion =
                run->memory.subspan(skip, std::min(run->memory.size() - skip, segment.bytes - at));
            visit(portion, at);
            at += portion.size();
        }
    }

private:
    void clear();
    struct Run {
        std::size_t offset;  ///< of its first byte in the block
        std::span<std::byte> memory;
    };

    bool is_cut_from(std::span<const std::span<std::byte>> tensors) const noexcept;
    void append(std::size_t offset, std::span<std::byte> memory);
    const Run* find(const Segment& segment) const noexcept;

    std::vector<std::span<std::byte>> tensors_;  ///< what is cut
    Cut cut_ = Cut::tensors;
    std::vector<Run> runs_;           ///< block by block, none empty
    std::vector<std::size_t> first_;  ///< first run of each block, and one past the last
    std::vector<std::size_t> bytes_;  ///< of each block
    std::size_t element_bytes_ = 1;
    std::size_t total_bytes_ = 0;
};

}  // namespace guozhuang
