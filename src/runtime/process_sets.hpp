#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "runtime/set_runtime.hpp"

namespace guozhuang {

/// The process sets of a rank besides the world. They are opened and released by entries of the
/// world's log, in its order, so every rank gives every set the same id without asking.
/// Thread-safe.
class ProcessSets {
public:
    explicit ProcessSets(std::shared_ptr<RankResources> resources)
        : resources_(std::move(resources)) {}

    struct Opened {
        SetId id;
        std::shared_ptr<SetRuntime> set_runtime;  ///< null: this rank is not in it
    };
    /// Empty if there are as many as there can be, on all ranks alike.
    std::optional<Opened> open(const std::vector<int>& ranks);
    /// Call it when no rank of the set sends anything for the set any more.
    void release(const SetId& id);

    /// Shuts every set down, later ones too, without waiting for anybody.
    void shut_down(std::string_view reason);

    /// The runtimes of the sets that this rank is in.
    std::vector<std::shared_ptr<SetRuntime>> set_runtimes() const;

private:
    std::shared_ptr<RankResources> resources_;
    mutable base::Mutex mutex_;
    /// This rank's part of each set, by context; null where only other ranks are in it.
    std::map<std::uint16_t, std::shared_ptr<SetRuntime>> sets_ GUOZHUANG_GUARDED_BY(mutex_);
    /// The number of sets opened so far.
    std::uint64_t epochs_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    std::optional<std::string> shutdown_reason_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang
