#include "wire/host_memory.hpp"

#include <new>

namespace guozhuang::wire {
namespace {

constexpr std::size_t page_bytes = std::size_t{64} << 10;  // the largest that Linux uses, so whole pages everywhere

// Bells, activities, rings; then, from a page of its own, what they stage in.
std::size_t activities_offset(int ranks) {
    return static_cast<std::size_t>(ranks) * sizeof(base::Doorbell);
}
std::size_t rings_offset(int ranks) {
    return activities_offset(ranks) + static_cast<std::size_t>(ranks) * sizeof(base::Activity);
}
std::size_t staging_offset(int ranks) {
    const auto end = rings_offset(ranks) + MessageRings::bytes_for(ranks);
    return (end + page_bytes - 1) / page_bytes * page_bytes;
}
std::size_t bytes_for(const HostMemory::Size& size) {
    return staging_offset(size.ranks) + Staging::bytes_for(size.ranks, size.stage_bytes);
}

}  // namespace

template <class T>
T* HostMemory::at(std::size_t offset) noexcept {
    return reinterpret_cast<T*>(file_.memory().data() + offset);
}

HostMemory HostMemory::create(const Size& size) {
    HostMemory memory(SharedFile::create(bytes_for(size)), size);
    memory.file_.reserve(0, staging_offset(size.ranks) + Staging::stage_offset(size.ranks, 0, 0));
    for (int rank = 0; rank < size.ranks; ++rank) {
        ::new (&memory.bell(rank)) base::Doorbell;
        ::new (&memory.activity(rank)) base::Activity;
    }
    Staging::initialise(memory.file_.memory().subspan(staging_offset(size.ranks)), size.ranks);
    memory.rings().initialise();
    return memory;
}

HostMemory HostMemory::attach(const Offer& offer, const Size& size) {
    return {SharedFile::attach(offer, bytes_for(size)), size};
}

void HostMemory::reserve_stage(int rank) {
    file_.reserve(staging_offset(size_.ranks) + Staging::stage_offset(size_.ranks, rank, size_.stage_bytes), size_.stage_bytes);
}

base::Doorbell& HostMemory::bell(int rank) noexcept {
    return at<base::Doorbell>(0)[rank];
}

base::Activity& HostMemory::activity(int rank) noexcept {
    return at<base::Activity>(activities_offset(size_.ranks))[rank];
}

MessageRings HostMemory::rings() noexcept {
    return {.memory = {at<std::byte>(rings_offset(size_.ranks)), MessageRings::bytes_for(size_.ranks)}, .ranks = size_.ranks};
}

Staging HostMemory::staging() noexcept {
    return Staging::in(file_.memory().subspan(staging_offset(size_.ranks)), size_.ranks);
}

}  // namespace guozhuang::wire
