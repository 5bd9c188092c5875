#pragma once

#include <guozhuang/error.hpp>
#include <memory>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/host/fake_driver.hpp"

namespace guozhuang {

/// The drivers of the devices that a rank uses, shared by its process sets. Thread-safe.
class Devices {
public:
    /// Null for the plain host. Throws Error(unavailable) for what cannot be used.
    std::shared_ptr<device::Driver> driver(DeviceKind kind) {
        if (kind == DeviceKind::host) return nullptr;
        if (kind == DeviceKind::cuda)
            throw Error(ErrorCode::unavailable,
                        "collectives on CUDA tensors are not part of this version; copy them to "
                        "host memory");
        const base::Lock lock(mutex_);
        if (!fake_) fake_ = device::make_fake_driver();
        return fake_;
    }

private:
    base::Mutex mutex_;
    std::shared_ptr<device::Driver> fake_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang
