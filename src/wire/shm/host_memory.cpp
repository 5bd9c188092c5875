#include "wire/shm/host_memory.hpp"

#include <new>

namespace guozhuang::wire {
namespace {

// Bells, activities, rings.
std::size_t activities_offset(int ranks) {
    return static_cast<std::size_t>(ranks) * sizeof(base::Doorbell);
}
std::size_t rings_offset(int ranks) {
    return activities_offset(ranks) + static_cast<std::size_t>(ranks) * sizeof(trace::Activity);
}
std::size_t bytes_for(int ranks) {
    return rings_offset(ranks) + MessageRings::bytes_for(ranks);
}

}  // namespace

template <class T>
T* HostMemory::at(std::size_t offset) noexcept {
    return reinterpret_cast<T*>(file_.memory().data() + offset);
}

HostMemory HostMemory::create(int ranks) {
    HostMemory memory(SharedFile::create(bytes_for(ranks)), ranks);
    memory.file_.reserve(0, bytes_for(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        ::new (&memory.bell(rank)) base::Doorbell;
        ::new (&memory.activity(rank)) trace::Activity;
    }
    memory.rings().initialise();
    return memory;
}

HostMemory HostMemory::attach(const Offer& offer, int ranks) {
    return {SharedFile::attach(offer, bytes_for(ranks)), ranks};
}

base::Doorbell& HostMemory::bell(int rank) noexcept {
    return at<base::Doorbell>(0)[rank];
}

trace::Activity& HostMemory::activity(int rank) noexcept {
    return at<trace::Activity>(activities_offset(ranks_))[rank];
}

MessageRings HostMemory::rings() noexcept {
    return {.memory = {at<std::byte>(rings_offset(ranks_)), MessageRings::bytes_for(ranks_)},
            .ranks = ranks_};
}

}  // namespace guozhuang::wire
