#include "wire/shm/regions.hpp"

#include <algorithm>
#include <utility>

namespace guozhuang::wire {
namespace {

std::uintptr_t begin_of(std::span<const std::byte> memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory.data());
}

std::uintptr_t end_of(std::span<const std::byte> memory) noexcept {
    return begin_of(memory) + memory.size();
}

}  // namespace

void Regions::add(std::uint64_t id, const std::vector<Range>& own,
                  std::vector<std::span<std::byte>> parts, std::function<void()> retreat) {
    const base::Lock lock(mutex_);
    for (const auto& range : own) own_.push_back({range, id});
    std::ranges::sort(own_, {}, [](const OwnRange& each) { return begin_of(each.range.memory); });
    regions_.insert_or_assign(id, Region{std::move(parts), std::move(retreat)});
    newest_ = std::max(newest_, id);
}

void Regions::remove(std::uint64_t id) noexcept {
    const base::Lock lock(mutex_);
    const auto region = regions_.find(id);
    if (region == regions_.end()) return;
    if (region->second.retreat) region->second.retreat();
    std::erase_if(own_, [id](const OwnRange& each) { return each.region == id; });
    regions_.erase(region);
}

/// Under the lock, so that whoever removes a region knows that nobody is about to make it retreat.
void Regions::retreat() noexcept {
    const base::Lock lock(mutex_);
    for (const auto& [id, region] : regions_)
        if (region.retreat) region.retreat();
    own_.clear();
    regions_.clear();
}

std::uint64_t Regions::next_id() {
    const base::Lock lock(mutex_);
    return ++newest_;
}

Place Regions::place(std::span<const std::byte> memory) const {
    const auto begin = begin_of(memory), end = end_of(memory);
    Place best;
    const base::Lock lock(mutex_);
    auto next = std::ranges::upper_bound(
        own_, begin, {}, [](const OwnRange& each) { return end_of(each.range.memory); });
    for (; next != own_.end() && begin_of(next->range.memory) < end; ++next) {
        const auto range_begin = begin_of(next->range.memory);
        const auto first = std::max(begin, range_begin),
                   last = std::min(end, end_of(next->range.memory));
        if (first < last && last - first > best.bytes)
            best = {.region = next->region,
                    .offset = next->range.offset + (first - range_begin),
                    .begin = first - begin,
                    .bytes = last - first};
    }
    return best;
}

std::span<std::byte> Regions::at(int position, const Place& place) const {
    const base::Lock lock(mutex_);
    const auto region = regions_.find(place.region);
    if (region == regions_.end() || std::cmp_greater_equal(position, region->second.parts.size()))
        return {};
    const auto part = region->second.parts[static_cast<std::size_t>(position)];
    if (place.offset > part.size() || place.bytes > part.size() - place.offset) return {};
    return part.subspan(static_cast<std::size_t>(place.offset),
                        static_cast<std::size_t>(place.bytes));
}

}  // namespace guozhuang::wire
