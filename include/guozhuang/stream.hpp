#pragma once

#include <guozhuang/tensor.hpp>

namespace guozhuang {

/// Names a stream of the user's, on which work on a tensor has been enqueued: a cudaStream_t for
/// DeviceKind::cuda, a host-fake stream for DeviceKind::fake. A null handle is the device's default
/// stream. An operation on such a tensor starts once the work that was on the stream at submission
/// is done. The stream must outlive the operation. Plain host tensors need none.
struct StreamRef {
    Device device = {};      ///< the tensor's
    void* native = nullptr;  ///< the stream's own handle
};

}  // namespace guozhuang
