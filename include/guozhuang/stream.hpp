#pragma once

#include <guozhuang/tensor.hpp>

namespace guozhuang {

/// Names the user's stream on which work on a tensor was enqueued: a cudaStream_t for
/// DeviceKind::cuda. A null handle is the device's default stream. An operation on the tensor
/// starts once all work is done that was on the stream when the operation was submitted. The stream
/// must outlive the operation. Host tensors need none.
struct StreamRef {
    Device device = {};      ///< the tensor's
    void* native = nullptr;  ///< the stream's own handle
};

}  // namespace guozhuang
