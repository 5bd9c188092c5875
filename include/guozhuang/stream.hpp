#pragma once

#include <guozhuang/tensor.hpp>

namespace guozhuang {

/// Names a stream of the user's on which work on a tensor was enqueued: a cudaStream_t for
/// DeviceKind::cuda. A null handle is the device's default stream. An operation on the tensor
/// starts when the work is done that was on the stream when it was submitted. The stream must
/// outlive the operation. Host tensors need none.
struct StreamRef {
    Device device = {};      ///< the tensor's
    void* native = nullptr;  ///< the stream's own handle
};

}  // namespace guozhuang
