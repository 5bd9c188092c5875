#pragma once

#include <chrono>
#include <guozhuang/arena.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/set_runtime.hpp"

/// From what a caller passes to what the engine takes: every check that needs no other rank is
/// here.
namespace guozhuang::api {

/// An operation as the caller put it.
struct OperationSpec {
    std::shared_ptr<SetRuntime> set;
    protocol::Description description;  ///< without its tensors
    std::string name = {};              ///< empty: unnamed
    std::vector<TensorView> tensors = {};
    std::vector<std::string> tensor_names = {};  ///< of a group; empty: numbered
    std::optional<StreamRef> stream = {};
    std::shared_ptr<void> keep_alive = {};
    std::vector<std::int64_t> splits = {};
    std::chrono::milliseconds timeout = {};  ///< 0: none of its own
};

/// Checks the spec, for once or, if the request is copied, as often as it is submitted. Throws
/// Error(invalid_argument). Its stream and timeout are a matter of the submission.
engine::Request prepare(OperationSpec spec);

/// Hands a request to the engine. Throws Error(unavailable, duplicate_name ...) before anything is
/// sent.
std::shared_ptr<engine::Pending> submit(SetRuntime& set, engine::Request request,
                                        const std::optional<StreamRef>& stream, bool caller_waits);
/// Both.
std::shared_ptr<engine::Pending> submit(OperationSpec spec, bool caller_waits);

/// Throws Error(invalid_argument) for a name that a user may not give: those that begin with # are
/// the ones of what has no name.
void check_name(std::string_view operation, std::string_view name);

/// Throws Error(invalid_argument) for a tensor that no operation takes: not contiguous, without
/// memory ...
void check_tensor(const TensorView& tensor, std::string_view operation, std::string_view name);

/// Of each tensor the last one that is the same memory: itself, if there is no other. Throws
/// Error(invalid_argument) if two of them overlap otherwise.
std::vector<std::size_t> same_memory(std::span<const NamedTensor> tensors,
                                     std::string_view operation, std::string_view name);

/// Lets tensors that are the same memory be moved once, as the last of them in all these specs. The
/// others have no elements from then on, and a name that says why: so that ranks on which other
/// tensors are the same see a mismatch. Throws as same_memory does.
void move_once(std::span<OperationSpec> specs, std::string_view operation, std::string_view name);

/// The same for a send or receive. The route's peer is a rank of the world.
std::shared_ptr<engine::Pending> submit_point_to_point(SetRuntime& set, const TensorView& tensor,
                                                       engine::Route route,
                                                       const PointToPointOptions& options,
                                                       bool caller_waits);

}  // namespace guozhuang::api
