#include "backends/host/scratch_pool.hpp"

#include <cstring>
#include <new>
#include <utility>

#include "collectives/layout/scratch.hpp"

namespace guozhuang::backends {

void ScratchPool::Free::operator()(std::byte* memory) const noexcept {
    ::operator delete[](memory, std::align_val_t(scratch_alignment));
}

std::span<std::byte> ScratchPool::get(std::size_t bytes) {
    if (bytes > bytes_ || !memory_) {
        memory_.reset();
        bytes_ = 0;
        memory_.reset(
            static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(scratch_alignment))));
        bytes_ = bytes;
        // The pages are faulted in now, not in the middle of an operation.
        std::memset(memory_.get(), 0, bytes);
    }
    return {memory_.get(), bytes_};
}

ScratchPool ScratchStore::take() {
    const base::Lock lock(mutex_);
    if (pools_.empty()) return {};
    auto pool = std::move(pools_.back());
    pools_.pop_back();
    return pool;
}

void ScratchStore::give_back(ScratchPool pool) {
    const base::Lock lock(mutex_);
    pools_.push_back(std::move(pool));
}

}  // namespace guozhuang::backends
