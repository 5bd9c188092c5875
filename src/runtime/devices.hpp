#pragma once

#include <atomic>
#include <guozhuang/error.hpp>
#include <map>
#include <memory>
#include <string>

#include "base/config.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/host/fake_driver.hpp"
#include "device/plugin.hpp"
#include "engine/completions.hpp"

namespace guozhuang {

/// A kind of device that a rank uses.
struct DeviceAccess {
    std::shared_ptr<device::Driver> driver;
    std::shared_ptr<engine::Completions> completions;
};

/// The kinds of devices that a rank uses, shared by its process sets. Thread-safe.
class Devices {
public:
    /// `kind` is not the plain host. Throws Error(unavailable) for what cannot be used. Before the
    /// first call for CUDA the process calls nothing of CUDA.
    DeviceAccess access(DeviceKind kind, const base::Config& config) {
        const base::Lock lock(mutex_);
        auto& access = accesses_[kind];
        if (!access.driver) {
            auto driver =
                kind == DeviceKind::fake ? device::make_fake_driver() : cuda_driver(config.cuda);
            driver->limit_multiprocessors(config.device_sms);
            access.completions = std::make_shared<engine::Completions>(driver);
            if (kind == DeviceKind::cuda) cuda_in_use_ = driver.get();
            access.driver = std::move(driver);
        }
        return access;
    }

    /// Notes which path the world's tensors take, and why no better one; empty before the first.
    void note_path(DeviceKind kind, const std::string& path) {
        const base::Lock lock(mutex_);
        paths_[kind] = path;
    }
    std::string path(DeviceKind kind) {
        const base::Lock lock(mutex_);
        return paths_[kind];
    }

    /// CUDA's driver if this rank has had access to it; else null.
    device::Driver* cuda_in_use() const noexcept { return cuda_in_use_; }

private:
    static std::shared_ptr<device::Driver> cuda_driver(bool wanted) {
        const auto refuse = [](const std::string& reason) {
            throw Error(ErrorCode::unavailable,
                        "CUDA tensors cannot be used here: " + reason +
                            " (gz-info says more); copy them to host memory");
        };
        if (!wanted) refuse("GUOZHUANG_CUDA is off");
        const auto& [driver, reason] = device::cuda_driver();
        if (!driver) refuse(reason);
        return {std::shared_ptr<void>(), driver};  // lives as long as the process
    }

    std::atomic<device::Driver*> cuda_in_use_{nullptr};
    base::Mutex mutex_;
    std::map<DeviceKind, DeviceAccess> accesses_ GUOZHUANG_GUARDED_BY(mutex_);
    std::map<DeviceKind, std::string> paths_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang
