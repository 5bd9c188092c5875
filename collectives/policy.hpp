#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>

namespace guozhuang::selection {

/// The inputs of the choice of an algorithm, besides the sizes of tensors. Every log entry carries
/// the policy of the rank that appended it, so that no rank chooses for itself. The sizes are those
/// of the configuration (base/config.hpp).
struct Policy {
    /// One that GUOZHUANG_ALGORITHM accepts; automatic: the choice is free.
    Algorithm forced = Algorithm::automatic;
    /// The order class is always tree, so that every algorithm gives the same bits: because the
    /// user wants it, or because all ranks are on one host.
    bool reproducible = false;
    /// All ranks have memory in which they stage data for each other.
    bool staging = false;
    /// The ranks are on several hosts, several of them on one, and those of a host have such
    /// memory.
    bool hierarchy = false;
    std::size_t small_bytes = 0;  ///< up to this size latency costs more than bytes
    /// The largest segment; two per chunk in flight should stay in L2.
    std::size_t segment_bytes = 0;
    friend bool operator==(const Policy&, const Policy&) = default;
};

}  // namespace guozhuang::selection
