#pragma once

#include <cstdint>
#include <guozhuang/export.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <optional>
#include <span>

/// Elementwise work of a training loop, wherever the tensors are: done at once on the host, in
/// stream order on a device. Local: no other rank takes part. Any thread; nobody else may use a
/// tensor while it is written. All throw Error: invalid_argument for a tensor that operations
/// refuse; for tensors on a device also unavailable if the device cannot be used or has failed,
/// out_of_memory, not_initialised.
namespace guozhuang {

/// Options for tensors on a device; tensors on the host need none.
struct ElementOptions {
    /// Produces the tensors on its device; the work follows in its order. Without one, and for
    /// tensors on other devices, the default stream of the tensor's device is used.
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< names the session; its ranks take no part
};

/// Sets all elements to zero. On a device the work is only enqueued.
GUOZHUANG_API void zero(const TensorView& tensor, const ElementOptions& options = {});

/// tensor = tensor * factor, in the dtype (f16 and bf16 through f32, rounded once), so with the
/// same bits on every device. On a device the work is only enqueued. Throws Error(invalid_argument)
/// for a dtype that is not floating.
GUOZHUANG_API void scale(const TensorView& tensor, double factor,
                         const ElementOptions& options = {});

/// The 2-norm of all elements of all tensors together; 0 if there are none. Squares are added up in
/// f64, for each tensor in an order that is the same on every device, so equal elements have equal
/// norms wherever they are. NaN and infinity pass through. Blocks until the devices have computed
/// it. Throws Error(invalid_argument) for a dtype that is not floating, and what ends the job
/// meanwhile.
GUOZHUANG_API double norm(std::span<const TensorView> tensors, const ElementOptions& options = {});

/// A 64-bit hash (XXH3) of the elements' bytes, the same wherever they are. Ignores shape and
/// dtype. Blocks until the device has done its work; the bytes pass through pinned host memory.
/// Throws what ends the job meanwhile.
GUOZHUANG_API std::uint64_t hash(const TensorView& tensor, const ElementOptions& options = {});

}  // namespace guozhuang
