#pragma once

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

#include "engine/call.hpp"
#include "runtime/set_runtime.hpp"

/// Turns calls into requests for the engine, with all checks that need no other rank.
namespace guozhuang::api {

/// Throws Error(invalid_argument) for a call that is wrong whatever the other ranks call.
void check(SetRuntime& set, const engine::Call& call);

/// Makes a request from a call that check() has passed. Copies of it may be submitted repeatedly;
/// it has neither stream nor timeout. Throws Error: invalid_argument (the device), unavailable.
engine::Request prepare(SetRuntime& set, const engine::Call& call);

/// Submits a request. `streams`: those that produce its tensors; empty: the device's default
/// stream. If it throws (Error: unavailable, duplicate_name ...), nothing was sent.
std::shared_ptr<engine::Pending> submit(SetRuntime& set, engine::Request&& request,
                                        std::span<const StreamRef> streams, bool caller_waits);
/// Prepares and submits a call that check() has passed.
std::shared_ptr<engine::Pending> submit(SetRuntime& set, const engine::Call& call,
                                        bool caller_waits);

/// Throws Error(invalid_argument) for a name that users may not give: names that begin with # are
/// made for operations without one.
void check_name(std::string_view operation, std::string_view name);

/// Throws Error(invalid_argument) for a tensor that no operation takes: not contiguous, without
/// memory ...
void check_tensor(const TensorView& tensor, std::string_view operation, std::string_view name);

/// For each tensor the index of the last tensor with the same memory, often its own. Throws
/// Error(invalid_argument) if two tensors overlap in any other way.
std::vector<std::size_t> same_memory(std::span<const NamedTensor> tensors,
                                     std::string_view operation, std::string_view name);

/// Makes tensors with the same memory move once, as the last of them. The others lose their
/// elements and get a name that says why, so that ranks on which other tensors share memory fail
/// with a mismatch. Throws as same_memory().
void move_once(std::span<NamedTensor> tensors, std::string_view operation, std::string_view name);

/// Checks and submits a send or receive. The peer in `route` is a world rank.
std::shared_ptr<engine::Pending> submit_point_to_point(SetRuntime& set, const TensorView& tensor,
                                                       const protocol::Route& route,
                                                       const PointToPointOptions& options,
                                                       bool caller_waits);

}  // namespace guozhuang::api
