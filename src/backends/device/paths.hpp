#pragma once

#include <memory>
#include <vector>

#include "backends/device/path.hpp"
#include "base/mutex.hpp"

namespace guozhuang::backends {

/// The paths that bundles of a process set may use. Thread-safe.
class Paths {
public:
    /// Keeps the path as long as this lives, and releases it at once if the others have been
    /// released.
    Path& keep(std::unique_ptr<Path> path);
    /// See engine::StreamBackend.
    void release() noexcept;
    bool was_released() const noexcept;
    void stop() noexcept;

private:
    mutable base::Mutex mutex_;
    std::vector<std::unique_ptr<Path>> paths_ GUOZHUANG_GUARDED_BY(mutex_);
    bool is_released_ GUOZHUANG_GUARDED_BY(mutex_) = false;
};

}  // namespace guozhuang::backends
