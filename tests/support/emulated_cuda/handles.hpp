#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {

/// Objects by handles that are never reused, so that a dead one is recognised. Thread-safe.
template <class Handle, class Object>
class Handles {
public:
    /// `first` keeps the handles of several tables apart.
    Handles(std::uintptr_t first, const char* rule) : first_(first), next_(first), rule_(rule) {}

    Handle add(std::shared_ptr<Object> object) {
        const std::lock_guard lock(mutex_);
        next_ += alignof(std::max_align_t);
        objects_[next_] = std::move(object);
        return reinterpret_cast<Handle>(next_);  // NOLINT(performance-no-int-to-ptr)
    }
    /// Null if the value has never been a handle. A removed handle breaks the rule.
    std::shared_ptr<Object> find(Handle handle) {
        const std::lock_guard lock(mutex_);
        const auto value = reinterpret_cast<std::uintptr_t>(handle);
        if (const auto found = objects_.find(value); found != objects_.end()) return found->second;
        if (value > first_ && value <= next_) break_rule(rule_);
        return nullptr;
    }
    std::shared_ptr<Object> remove(Handle handle) {
        auto object = find(handle);
        const std::lock_guard lock(mutex_);
        objects_.erase(reinterpret_cast<std::uintptr_t>(handle));
        return object;
    }

private:
    const std::uintptr_t first_;
    std::uintptr_t next_;
    const char* const rule_;
    std::mutex mutex_;
    std::map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace guozhuang::emulated_cuda
