#include "backends/device/paths.hpp"

#include <algorithm>
#include <utility>

namespace guozhuang::backends {

Path& Paths::keep(std::unique_ptr<Path> path) {
    const base::Lock lock(mutex_);
    if (is_released_) path->release();
    return *paths_.emplace_back(std::move(path));
}

void Paths::release() noexcept {
    const base::Lock lock(mutex_);
    is_released_ = true;
    for (const auto& path : paths_) path->release();
}

bool Paths::was_released() const noexcept {
    const base::Lock lock(mutex_);
    return std::ranges::any_of(paths_, [](const auto& path) { return path->was_released(); });
}

/// Without the lock, which threads take to look at the streams: a path may take a while.
void Paths::stop() noexcept {
    std::vector<Path*> paths;
    {
        const base::Lock lock(mutex_);
        for (const auto& path : paths_) paths.push_back(path.get());
    }
    for (auto* path : paths) path->stop();
}

}  // namespace guozhuang::backends
