#include "wire/host_memory.hpp"

#include <new>

namespace guozhuang::wire {
namespace {

constexpr std::size_t page_bytes = std::size_t{64} << 10;  // the largest that Linux uses, so whole pages everywhere

// Bells, activities, progress words, rings; then, from a page of its own, the stages.
std::size_t activities_offset(int ranks) {
    return static_cast<std::size_t>(ranks) * sizeof(base::Doorbell);
}
std::size_t progress_offset(int ranks) {
    return activities_offset(ranks) + static_cast<std::size_t>(ranks) * sizeof(base::Activity);
}
std::size_t rings_offset(int ranks) {
    return progress_offset(ranks) + static_cast<std::size_t>(ranks) * sizeof(Staging::Progress);
}
std::size_t stages_offset(int ranks) {
    const auto end = rings_offset(ranks) + MessageRings::bytes_for(ranks);
    return (end + page_bytes - 1) / page_bytes * page_bytes;
}
std::size_t bytes_for(const HostMemory::Size& size) {
    return stages_offset(size.ranks) + static_cast<std::size_t>(size.ranks) * size.stage_bytes;
}

}  // namespace

template <class T>
T* HostMemory::at(std::size_t offset) noexcept {
    return reinterpret_cast<T*>(file_.memory().data() + offset);
}

HostMemory HostMemory::create(const Size& size) {
    HostMemory memory(SharedFile::create(bytes_for(size)), size);
    memory.file_.reserve(0, stages_offset(size.ranks));
    for (int rank = 0; rank < size.ranks; ++rank) {
        ::new (&memory.bell(rank)) base::Doorbell;
        ::new (&memory.activity(rank)) base::Activity;
        ::new (memory.at<Staging::Progress>(progress_offset(size.ranks)) + rank) Staging::Progress;
    }
    memory.rings().initialise();
    return memory;
}

HostMemory HostMemory::attach(const Offer& offer, const Size& size) {
    return {SharedFile::attach(offer, bytes_for(size)), size};
}

void HostMemory::reserve_stage(int rank) {
    file_.reserve(stages_offset(size_.ranks) + static_cast<std::size_t>(rank) * size_.stage_bytes, size_.stage_bytes);
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
    const auto ranks = static_cast<std::size_t>(size_.ranks);
    return {.progress = {at<Staging::Progress>(progress_offset(size_.ranks)), ranks},
            .stages = {at<std::byte>(stages_offset(size_.ranks)), ranks * size_.stage_bytes}};
}

}  // namespace guozhuang::wire
