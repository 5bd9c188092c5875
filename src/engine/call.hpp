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

/// An operation as its caller passes it. It refers to the caller's memory and takes none of its
/// own, so a small allreduce may be over before anything has been kept of it.
struct Call {
    protocol::Description description;  ///< without its tensors and splits
    std::string_view name = {};         ///< empty: none
    std::span<const TensorView> tensors = {};
    std::span<const std::string> tensor_names = {};  ///< of a group's tensors; empty: numbers
    std::span<const TensorView> outputs = {};        ///< for the results; empty: none
    std::span<const std::int64_t> splits = {};
    std::optional<StreamRef> stream = {};
    std::shared_ptr<void> keep_alive = {};
    std::chrono::milliseconds timeout = {};  ///< 0: no limit of its own
    /// Engine::run_eagerly() numbers calls without a name; 0: it has not.
    std::uint64_t number = 0;
};

}  // namespace guozhuang::engine
