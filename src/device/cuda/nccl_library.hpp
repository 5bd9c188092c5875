#pragma once

#include <functional>
#include <string>

#include "device/cuda/cuda_device.hpp"
#include "device/nccl.hpp"
#include "device/or_reason.hpp"

namespace guozhuang::device {

using DeviceByIndex = std::function<CudaDevice&(int device)>;

/// As Driver::nccl. A process has one NCCL: that which the program has loaded, else the first that
/// was wanted and could be loaded. It is never unloaded.
/// `is_limited`: it must be one that can be told how many CTAs to use.
OrReason<Nccl*> nccl_of(const std::string& wanted, const DeviceByIndex& devices, bool is_limited);

}  // namespace guozhuang::device
