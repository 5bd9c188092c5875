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
                  std::vector<std::span<std::byte>> mappings, std::function<void()> unshare) {
    const base::Lock lock(mutex_);
    for (const auto& range : own) own_.push_back({range, id});
    std::ranges::sort(own_, {}, [](const OwnRange& each) { return begin_of(each.range.memory); });
    regions_.insert_or_assign(id, Region{std::move(mappings), std::move(unshare)});
    is_empty_.store(false, std::memory_order_release);
}

void Regions::remove(std::uint64_t id) noexcept {
    const base::Lock lock(mutex_);
    const auto region = regions_.find(id);
    if (region == regions_.end()) return;
    if (region->second.unshare) region->second.unshare();
    std::erase_if(own_, [id](const OwnRange& each) { return each.region == id; });
    regions_.erase(region);
    is_empty_.store(regions_.empty(), std::memory_order_release);
}

/// Under the lock, so that a thread that removes a region knows that no other is about to unshare
/// it.
void Regions::remove_all() noexcept {
    const base::Lock lock(mutex_);
    for (const auto& [id, region] : regions_)
        if (region.unshare) region.unshare();
    own_.clear();
    regions_.clear();
    is_empty_.store(true, std::memory_order_release);
}

RegionRef Regions::locate(std::span<const std::byte> memory) const {
    if (is_empty_.load(std::memory_order_acquire)) return {};
    const auto begin = begin_of(memory), end = end_of(memory);
    RegionRef best;
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

std::span<std::byte> Regions::at(int rank, const RegionRef& ref) const {
    const base::Lock lock(mutex_);
    const auto region = regions_.find(ref.region);
    if (region == regions_.end() || std::cmp_greater_equal(rank, region->second.mappings.size()))
        return {};
    const auto mapping = region->second.mappings[static_cast<std::size_t>(rank)];
    if (ref.offset > mapping.size() || ref.bytes > mapping.size() - ref.offset) return {};
    return mapping.subspan(static_cast<std::size_t>(ref.offset),
                           static_cast<std::size_t>(ref.bytes));
}

}  // namespace guozhuang::wire
