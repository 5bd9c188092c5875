#include "collectives/layout/blocks.hpp"

#include <cstring>

namespace guozhuang {
namespace {

struct Range {
    std::size_t begin, end;
};

/// The index-th of `count` slices of this many bytes.
Range slice_of(std::size_t bytes, std::size_t element_bytes, std::size_t index, std::size_t count) {
    const auto elements = bytes / element_bytes;
    const auto share = elements / count;
    const auto longer = elements % count;
    const auto begin_of = [&](std::size_t slice) {
        return (slice * share + std::min(slice, longer)) * element_bytes;
    };
    return {begin_of(index), begin_of(index + 1)};
}

/// Returns the part of a range of the bundle that lies in the tensor of this many bytes at `begin`.
Range part_of(Range range, std::size_t begin, std::size_t bytes) {
    const auto clamped = [&](std::size_t at) {
        return std::clamp(at, begin, begin + bytes) - begin;
    };
    return {clamped(range.begin), clamped(range.end)};
}

}  // namespace

void Blocks::assign(std::span<const std::span<std::byte>> tensors, std::size_t element_bytes,
                    int count, Cut cut) {
    if (count == this->count() && element_bytes == element_bytes_ && cut == cut_ &&
        is_cut_from(tensors))
        return;
    clear();
    cut_ = cut;
    element_bytes_ = element_bytes;
    for (const auto tensor : tensors) total_bytes_ += tensor.size();
    const auto blocks = static_cast<std::size_t>(count);
    for (std::size_t block = 0; block < blocks; ++block) {
        first_.push_back(runs_.size());
        const auto of_bundle = slice_of(total_bytes_, element_bytes, block, blocks);
        std::size_t offset = 0, at = 0;
        for (const auto tensor : tensors) {
            const auto [begin, end] = cut == Cut::bundle
                                          ? part_of(of_bundle, at, tensor.size())
                                          : slice_of(tensor.size(), element_bytes, block, blocks);
            append(offset, tensor.subspan(begin, end - begin));
            offset += end - begin;
            at += tensor.size();
        }
        bytes_.push_back(offset);
    }
    first_.push_back(runs_.size());
    tensors_.assign(tensors.begin(), tensors.end());
}

void Blocks::assign_blocks(std::span<const std::span<std::byte>> blocks) {
    clear();
    element_bytes_ = 1;
    for (const auto block : blocks) {
        first_.push_back(runs_.size());
        append(0, block);
        bytes_.push_back(block.size());
        total_bytes_ += block.size();
    }
    first_.push_back(runs_.size());
}

/// Forgets what was cut, in case memory runs out before all is computed.
void Blocks::clear() {
    tensors_.clear();
    runs_.clear();
    first_.clear();
    bytes_.clear();
    total_bytes_ = 0;
}

bool Blocks::is_cut_from(std::span<const std::span<std::byte>> tensors) const noexcept {
    return !tensors.empty() && std::ranges::equal(tensors, tensors_, [](auto one, auto other) {
        return one.data() == other.data() && one.size() == other.size();
    });
}

void Blocks::append(std::size_t offset, std::span<std::byte> memory) {
    if (memory.empty()) return;
    const bool first_of_block = runs_.size() == first_.back();
    if (!first_of_block &&
        runs_.back().memory.data() + runs_.back().memory.size() == memory.data()) {
        runs_.back().memory = {runs_.back().memory.data(),
                               runs_.back().memory.size() + memory.size()};
    } else {
        runs_.push_back({offset, memory});
    }
}

/// The run that holds the segment's first byte. Only meaningful for a segment that is not empty.
const Blocks::Run* Blocks::find(const Segment& segment) const noexcept {
    if (segment.bytes == 0) return nullptr;
    const auto* const begin = runs_.data() + first_[static_cast<std::size_t>(segment.block)];
    const auto* const end = runs_.data() + first_[static_cast<std::size_t>(segment.block) + 1];
    return std::upper_bound(
               begin, end, segment.offset,
               [](std::size_t offset, const Run& run) { return offset < run.offset; }) -
           1;
}

std::span<std::byte> Blocks::in_place(const Segment& segment) const noexcept {
    if (segment.bytes == 0) return {};
    const auto* const run = find(segment);
    const auto skip = segment.offset - run->offset;
    if (run->memory.size() - skip < segment.bytes) return {};
    return run->memory.subspan(skip, segment.bytes);
}

std::span<std::byte> Blocks::landing(const Segment& segment,
                                     std::span<std::byte> room) const noexcept {
    const auto own = in_place(segment);
    return own.empty() ? room.first(segment.bytes) : own;
}

std::span<std::byte> Blocks::gather(const Segment& segment,
                                    std::span<std::byte> room) const noexcept {
    if (const auto own = in_place(segment); !own.empty()) return own;
    for_each_run(segment, [room](std::span<std::byte> run, std::size_t at) {
        std::memcpy(room.data() + at, run.data(), run.size());
    });
    return room.first(segment.bytes);
}

void Blocks::scatter(const Segment& segment, std::span<const std::byte> from) const noexcept {
    if (from.empty() || in_place(segment).data() == from.data()) return;
    for_each_run(segment, [from](std::span<std::byte> run, std::size_t at) {
        std::memcpy(run.data(), from.data() + at, run.size());
    });
}

}  // namespace guozhuang
