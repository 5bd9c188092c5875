#pragma once

#include <chrono>
#include <cstdint>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "protocol/description.hpp"

namespace guozhuang::engine {

/// An operation as its caller passes it. It refers to the caller's memory and allocates nothing, so
/// a small allreduce may finish without a copy of its call.
struct Call {
    protocol::Description description;  ///< without its tensors and splits
    std::string_view name = {};         ///< empty: none
    std::span<const TensorView> tensors = {};
    std::span<const std::string> tensor_names = {};  ///< of a group's tensors; empty: numbers
    std::span<const TensorView> outputs = {};        ///< for the results; empty: none
    std::span<const std::int64_t> splits = {};
    std::optional<StreamRef> stream = {};
    std::shared_ptr<void> keep_alive = {};
    std::chrono::milliseconds timeout = {};  ///< 0: the default limit
    /// Set by Engine::run_eagerly() for calls without a name; 0: not set.
    std::uint64_t number = 0;
};

}  // namespace guozhuang::engine
