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

/// Turns what a caller passes into what the engine takes. All checks that need no other rank are
/// here.
namespace guozhuang::api {

/// An operation as the caller specified it.
struct OperationSpec {
    std::shared_ptr<SetRuntime> set;
    protocol::Description description;  ///< without its tensors
    std::string_view name = {};  ///< the caller's text, which outlives prepare(); empty: none
    std::uint64_t number = 0;    ///< of an unnamed one; 0: it has none yet
    engine::SharedTensors tensors = {};
    std::vector<std::string> tensor_names = {};  ///< of a group's tensors; empty: numbers
    engine::SharedTensors outputs = {};          ///< for the results; empty: none
    std::optional<StreamRef> stream = {};
    std::shared_ptr<void> keep_alive = {};
    std::vector<std::int64_t> splits = {};
    std::chrono::milliseconds timeout = {};  ///< 0: no limit of its own
    std::chrono::microseconds wait_first = {};
};

/// A spec without its outputs, splits and device, which are checked apart.
struct BareOperation {
    SetRuntime& set;
    const protocol::Description& description;
    std::string_view name;
    std::span<const TensorView> tensors;
    std::chrono::milliseconds timeout;
    std::chrono::microseconds wait_first;
    std::span<const std::string> tensor_names = {};
};
/// Throws Error(invalid_argument).
void check(const BareOperation& operation);

/// Checks the spec and makes a request, copies of which may be submitted again and again. Throws
/// Error(invalid_argument). Ignores stream, timeout and wait_first, which are not of the request.
engine::Request prepare(OperationSpec&& spec);

/// Submits a request to the engine, whose tensors were made on these streams of their device; none:
/// its default stream. If it throws (Error: unavailable, duplicate_name ...), nothing was sent.
std::shared_ptr<engine::Pending> submit(SetRuntime& set, engine::Request&& request,
                                        std::span<const StreamRef> streams, bool caller_waits);
/// prepare() and submit().
std::shared_ptr<engine::Pending> submit(OperationSpec&& spec, bool caller_waits);

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

/// Lets tensors with the same memory be moved once, as the last of them in all these specs. The
/// others lose their elements and get a name that says why, so that ranks on which other tensors
/// have the same memory fail with a mismatch. Throws as same_memory().
void move_once(std::span<OperationSpec> specs, std::string_view operation, std::string_view name);

/// Submits a send or receive, checked likewise. The route's peer is a world rank.
std::shared_ptr<engine::Pending> submit_point_to_point(SetRuntime& set, const TensorView& tensor,
                                                       engine::Route route,
                                                       const PointToPointOptions& options,
                                                       bool caller_waits);

}  // namespace guozhuang::api
