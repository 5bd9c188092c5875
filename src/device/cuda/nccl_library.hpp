#pragma once

#include <functional>
#include <string>

#include "device/cuda/cuda_device.hpp"
#include "device/nccl.hpp"
#include "device/or_reason.hpp"

namespace guozhuang::device {

using DeviceByIndex = std::function<CudaDevice&(int device)>;

/// See Driver::nccl. A process has one NCCL: the one that the program has loaded, otherwise the
/// first that was wanted and could be loaded. It is never unloaded. `is_limited`: it must have a
/// setting for the number of CTAs.
OrReason<Nccl*> nccl_of(const std::string& wanted, const DeviceByIndex& devices, bool is_limited);

}  // namespace guozhuang::device
