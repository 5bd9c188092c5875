#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "protocol/codec.hpp"
#include "protocol/description.hpp"
#include "protocol/name.hpp"

namespace guozhuang::protocol {

/// A request that is ready for the log: all ranks have submitted it, or have joined.
struct ReadyRequest {
    Name name;
    bool named = true;
    std::uint32_t id = 0;  ///< of the name when its round was complete; 0: none
    SharedDescription description;
    std::vector<int> absent = {};  ///< ranks that have joined and not submitted it
    Bytes contributions = {};      ///< of all ranks; empty: some rank has sent none
};

/// Limits of requests that share an entry of the log. A larger request gets its own entry.
struct FusionLimits {
    std::size_t tensor_bytes = 0;
    std::size_t entry_bytes = 0;  ///< of the entry as it travels
};

/// How many of the requests (at least one), from the first on, can be executed as one: neighbours
/// that do the same to their tensors, within the limits.
std::size_t count_fused(std::span<const ReadyRequest> ready, const FusionLimits& limits);

}  // namespace guozhuang::protocol
