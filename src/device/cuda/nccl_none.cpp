#include "device/cuda/nccl_library.hpp"

namespace guozhuang::device {

OrReason<Nccl*> nccl_of(const std::string&, const DeviceByIndex&, bool) {
    return {.reason = "built without NCCL"};
}

}  // namespace guozhuang::device
