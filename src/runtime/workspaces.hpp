#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/keep_for_ever.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"
#include "device/sum_order.hpp"

namespace guozhuang {

/// Memory of a call that waits for a device: pinned memory, and scratch on the device.
class Workspace {
public:
    static constexpr std::size_t pinned_bytes = 2u << 20;

    /// Throws what the driver throws.
    Workspace(const std::shared_ptr<device::Driver>& driver, int device)
        : pinned_(device::allocate_pinned(driver, device, pinned_bytes)),
          scratch_(device::allocate_owned(driver, device, device::SumOrder::scratch_bytes)) {}

    std::span<std::byte> pinned() const noexcept { return pinned_.memory; }
    /// Has SumOrder::scratch_bytes.
    std::span<std::byte> scratch() const noexcept { return scratch_.memory; }

private:
    const device::OwnedMemory pinned_, scratch_;
};

/// The workspaces of a rank: allocated once and kept, since allocating may wait for the device.
/// Each is lent to one call at a time. Thread-safe.
class Workspaces {
public:
    using Owned = std::unique_ptr<Workspace>;

    /// Throws what the driver throws.
    Owned borrow(const std::shared_ptr<device::Driver>& driver, Device device) {
        {
            const base::Lock lock(mutex_);
            auto& idle = idle_[{device.kind, device.index}];
            if (!idle.empty()) {
                auto workspace = std::move(idle.back());
                idle.pop_back();
                return workspace;
            }
        }
        return std::make_unique<Workspace>(driver, device.index);
    }
    /// Call it when the device no longer uses the workspace.
    void give_back(Owned workspace, Device device) {
        const base::Lock lock(mutex_);
        idle_[{device.kind, device.index}].push_back(std::move(workspace));
    }

private:
    base::Mutex mutex_;
    std::map<std::pair<DeviceKind, int>, std::vector<Owned>> idle_ GUOZHUANG_GUARDED_BY(mutex_);
};

/// A workspace for the duration of a call. If the call fails, the device may still use it, so it is
/// kept for ever.
class LentWorkspace {
public:
    LentWorkspace(Workspaces& lender, const std::shared_ptr<device::Driver>& driver, Device device)
        : lender_(lender), device_(device), workspace_(lender.borrow(driver, device)) {}
    ~LentWorkspace() {
        if (workspace_) base::keep_for_ever(std::move(workspace_));
    }
    LentWorkspace(const LentWorkspace&) = delete;
    LentWorkspace& operator=(const LentWorkspace&) = delete;

    const Workspace& operator*() const noexcept { return *workspace_; }
    const Workspace* operator->() const noexcept { return workspace_.get(); }
    /// The device is done with it.
    void give_back() { lender_.give_back(std::move(workspace_), device_); }

private:
    Workspaces& lender_;
    const Device device_;
    Workspaces::Owned workspace_;
};

}  // namespace guozhuang
