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

/// Turns what a caller passes into what the engine takes. All checks that need no other rank are
/// here.
namespace guozhuang::api {

/// Throws Error(invalid_argument) for a call that is wrong whatever the other ranks call.
void check(SetRuntime& set, const engine::Call& call);

/// Makes a request of a call that check() has passed. Copies of it may be submitted again and
/// again; it has neither stream nor timeout. Throws Error: invalid_argument (the device),
/// unavailable.
engine::Request prepare(SetRuntime& set, const engine::Call& call);

/// Submits a request to the engine, whose tensors were made on these streams of their device; none:
/// its default stream. If it throws (Error: unavailable, duplicate_name ...), nothing was sent.
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

/// For each tensor the index of the last one with the same memory, often its own. Throws
/// Error(invalid_argument) if two overlap otherwise.
std::vector<std::size_t> same_memory(std::span<const NamedTensor> tensors,
                                     std::string_view operation, std::string_view name);

/// Lets tensors with the same memory be moved once, as the last of them. The others lose their
/// elements and get a name that says why, so that ranks on which other tensors have the same memory
/// fail with a mismatch. Throws as same_memory().
void move_once(std::span<NamedTensor> tensors, std::string_view operation, std::string_view name);

/// Submits a send or receive, checked likewise. The peer of this route is a world rank.
std::shared_ptr<engine::Pending> submit_point_to_point(SetRuntime& set, const TensorView& tensor,
                                                       const protocol::Route& route,
                                                       const PointToPointOptions& options,
                                                       bool caller_waits);

}  // namespace guozhuang::api
