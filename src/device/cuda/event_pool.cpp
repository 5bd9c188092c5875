#include "device/cuda/event_pool.hpp"

#include "device/cuda/cuda_error.hpp"

namespace guozhuang::device {

cudaEvent_t EventPool::take() {
    if (const auto event = take_free()) return event;
    // Without the mutex, for which destructors of events wait: CUDA may take long.
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cannot make an event");
    return event;
}

cudaEvent_t EventPool::take_free() {
    const base::Lock lock(mutex_);
    if (free_.empty()) {
        if (++made_ > free_.capacity()) free_.reserve(2 * made_);
        return nullptr;
    }
    const auto event = free_.back();
    free_.pop_back();
    return event;
}

void EventPool::give_back(cudaEvent_t event) noexcept {
    const base::Lock lock(mutex_);
    free_.push_back(event);  // there is room, so nothing is allocated
}

}  // namespace guozhuang::device
