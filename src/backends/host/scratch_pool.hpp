#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.hpp"

namespace guozhuang::backends {

/// Memory for algorithms that is allocated once and kept; it grows to the largest need. Starts at a
/// cache line.
class ScratchPool {
public:
    std::span<std::byte> get(std::size_t bytes);

private:
    struct Free {
        void operator()(std::byte* memory) const noexcept;
    };
    std::unique_ptr<std::byte, Free> memory_;
    std::size_t bytes_ = 0;
};

/// The scratch memory of a rank, lent to the backends that run a bundle: many process sets need
/// only as much as those in use at once. Thread-safe.
class ScratchStore {
public:
    ScratchPool take();
    void give_back(ScratchPool pool);

private:
    base::Mutex mutex_;
    std::vector<ScratchPool> pools_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::backends
