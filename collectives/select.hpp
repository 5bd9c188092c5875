#pragma once

#include <algorithm>
#include <cstddef>
#include <guozhuang/types.hpp>

#include "collectives/algorithms.hpp"
#include "collectives/policy.hpp"

/// Chooses the algorithm and the segments of an allreduce: a pure function of values that all ranks
/// agree on. docs/algorithms.md describes the choice. Every other operation has one algorithm for
/// messages, one for stages, and perhaps one for several hosts.
namespace guozhuang::selection {

struct AllreduceShape {
    /// Bytes of the largest tensor; all tensors of a bundle are of one order class.
    std::size_t tensor_bytes = 0;
    std::size_t bundle_bytes = 0;  ///< of all tensors together
    int ranks = 1;
    Policy policy = {};
};

struct AlgorithmChoice {
    Algorithm algorithm = Algorithm::automatic;
    std::size_t segment_bytes = 0;  ///< 0 where the algorithm has no segments
    friend bool operator==(const AlgorithmChoice&, const AlgorithmChoice&) = default;
};

/// The order class of a tensor: by its own size, never by that of the bundle it is fused into, so
/// fusion does not change a sum. Tensors of different classes must not be fused.
constexpr OrderClass order_class_of(std::size_t tensor_bytes, const Policy& policy) noexcept {
    if (policy.forced != Algorithm::automatic) return order_class_of(policy.forced);
    const bool tree = policy.reproducible || policy.staging || tensor_bytes <= policy.small_bytes;
    if (tree) return OrderClass::tree;
    return policy.hierarchy ? OrderClass::hierarchy : OrderClass::ring;
}

constexpr Algorithm algorithm_of(const AllreduceShape& shape) noexcept {
    const auto& policy = shape.policy;
    const bool small = shape.bundle_bytes <= policy.small_bytes;
    if (policy.forced == Algorithm::direct && policy.staging) return Algorithm::staged;
    if (policy.forced != Algorithm::automatic) return policy.forced;
    if (policy.staging) return Algorithm::staged;
    switch (order_class_of(shape.tensor_bytes, policy)) {
        case OrderClass::ring: return Algorithm::ring;
        case OrderClass::hierarchy: return Algorithm::hierarchical;
        case OrderClass::tree: break;
    }
    return small ? Algorithm::recursive_doubling : Algorithm::direct;
}

/// Direct algorithms have p segments of a chunk in flight, the ring only two: shorter ones stay in
/// cache too.
constexpr std::size_t direct_segment_bytes(int ranks, std::size_t segment_bytes) noexcept {
    const auto shorter = 2 * segment_bytes / static_cast<std::size_t>(std::max(ranks, 2));
    return std::min(segment_bytes, std::max<std::size_t>(shorter, 8 * 1024));
}

/// Two chunks of all blocks are in a cache at a time.
constexpr std::size_t staged_segment_bytes(int ranks, std::size_t segment_bytes) noexcept {
    return std::max<std::size_t>(segment_bytes / 2 / static_cast<std::size_t>(ranks), 1024);
}

constexpr AlgorithmChoice choose(const AllreduceShape& shape) noexcept {
    const auto segment = shape.policy.segment_bytes;
    const auto algorithm = algorithm_of(shape);
    switch (row_of(algorithm).segments) {
        case Segments::none: break;
        case Segments::longest: return {algorithm, segment};
        case Segments::shared: return {algorithm, direct_segment_bytes(shape.ranks, segment)};
        case Segments::staged: return {algorithm, staged_segment_bytes(shape.ranks, segment)};
    }
    return {algorithm, 0};
}

}  // namespace guozhuang::selection
