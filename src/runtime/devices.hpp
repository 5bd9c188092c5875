#pragma once

#include <atomic>
#include <guozhuang/error.hpp>
#include <memory>
#include <string>

#include "base/config.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "engine/completions.hpp"

namespace guozhuang {

/// The CUDA devices that a rank uses, shared by its process sets. Thread-safe.
class Devices {
public:
    /// Their driver, with the thread that sees when its work ends. Throws Error(unavailable) if
    /// CUDA cannot be used. Before the first call the process makes no CUDA calls.
    std::shared_ptr<engine::Completions> access(const base::Config& config) {
        const base::Lock lock(mutex_);
        if (!completions_) {
            auto driver = cuda_driver(config.cuda);
            driver->limit_multiprocessors(config.device_sms);
            completions_ = std::make_shared<engine::Completions>(std::move(driver));
            in_use_ = completions_->driver().get();
        }
        return completions_;
    }

    /// Notes which path the world's tensors take, and why no better one; empty before the first
    /// bundle.
    void note_path(const std::string& path) {
        const base::Lock lock(mutex_);
        path_ = path;
    }
    std::string path() {
        const base::Lock lock(mutex_);
        return path_;
    }

    /// The driver if this rank has had access to it; otherwise null.
    device::Driver* in_use() const noexcept { return in_use_; }

private:
    static std::shared_ptr<device::Driver> cuda_driver(bool wanted) {
        const auto refuse = [](const std::string& reason) {
            throw Error(ErrorCode::unavailable,
                        "CUDA tensors cannot be used here: " + reason +
                            " (gz-info says more); copy them to host memory");
        };
        if (!wanted) refuse("GUOZHUANG_CUDA is off");
        if (auto* const make = device::cuda_substitute.load()) return make();
        const auto& [driver, reason] = device::cuda_driver();
        if (!driver) refuse(reason);
        return {std::shared_ptr<void>(), driver};  // lives as long as the process
    }

    std::atomic<device::Driver*> in_use_{nullptr};
    base::Mutex mutex_;
    std::shared_ptr<engine::Completions> completions_ GUOZHUANG_GUARDED_BY(mutex_);
    std::string path_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang
