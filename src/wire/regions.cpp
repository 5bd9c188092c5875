#include "wire/regions.hpp"

#include <algorithm>
#include <utility>

namespace guozhuang::wire {

void Regions::add(std::uint64_t id, std::vector<Range> own, std::vector<std::span<std::byte>> parts, std::function<void()> retreat) {
    const base::Lock lock(mutex_);
    regions_.insert_or_assign(id, Region{std::move(own), std::move(parts), std::move(retreat)});
    newest_ = std::max(newest_, id);
}

void Regions::remove(std::uint64_t id) noexcept {
    const base::Lock lock(mutex_);
    const auto region = regions_.find(id);
    if (region == regions_.end()) return;
    if (region->second.retreat) region->second.retreat();
    regions_.erase(region);
}

/// Under the lock, so that whoever removes a region knows that nobody is about to make it retreat.
void Regions::retreat() noexcept {
    const base::Lock lock(mutex_);
    for (const auto& [id, region] : regions_)
        if (region.retreat) region.retreat();
    regions_.clear();
}

std::uint64_t Regions::next_id() {
    const base::Lock lock(mutex_);
    return ++newest_;
}

Place Regions::place(std::span<const std::byte> memory) const {
    const auto address = [](const std::byte* byte) { return reinterpret_cast<std::uintptr_t>(byte); };
    const auto begin = address(memory.data()), end = begin + memory.size();
    Place best;
    const base::Lock lock(mutex_);
    for (const auto& [id, region] : regions_) {
        for (const auto& range : region.own) {
            const auto range_begin = address(range.memory.data()), range_end = range_begin + range.memory.size();
            const auto first = std::max(begin, range_begin), last = std::min(end, range_end);
            if (first < last && last - first > best.bytes)
                best = {.region = id, .offset = range.offset + (first - range_begin), .begin = first - begin, .bytes = last - first};
        }
    }
    return best;
}

std::span<std::byte> Regions::at(int position, const Place& place) const {
    const base::Lock lock(mutex_);
    const auto region = regions_.find(place.region);
    if (region == regions_.end() || std::cmp_greater_equal(position, region->second.parts.size())) return {};
    const auto part = region->second.parts[static_cast<std::size_t>(position)];
    if (place.offset > part.size() || place.bytes > part.size() - place.offset) return {};
    return part.subspan(static_cast<std::size_t>(place.offset), static_cast<std::size_t>(place.bytes));
}

}  // namespace guozhuang::wire
