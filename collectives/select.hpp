#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>

/// Which algorithm does an allreduce, and in what segments: a pure function of what all ranks agree
/// on. docs/algorithms.md says the same in words. Every other operation has one for messages and
/// one for stages.
namespace guozhuang::selection {

/// In which order the terms of a sum are added; algorithms of one class give the same bits.
enum class OrderClass : std::uint8_t {
    /// The balanced binary tree over rank index, split at the largest power of two below the count;
    /// partials are rounded once.
    tree,
    ring,  ///< block b: b+1, b+2, ..., b; elements, rounded once per hop
    /// A tree over the ranks of each host, rounded once; then those sums as a ring over the hosts.
    hierarchy
};

struct Policy {
    /// One of those that GUOZHUANG_ALGORITHM takes; automatic: the choice is free.
    Algorithm forced = Algorithm::automatic;
    /// The order class is always tree, so that every algorithm gives the same bits: that was asked
    /// for, or all ranks are on one host.
    bool reproducible = false;
    /// All ranks have memory in which they stage data for each other.
    bool staging = false;
    /// The ranks are on several hosts, as many on each, and those of a host have such memory.
    bool hierarchy = false;
    std::size_t small_bytes = 32 * 1024;  ///< up to here latency counts more than bytes
    /// The largest segment; two per chunk in flight should stay in L2.
    std::size_t segment_bytes = 256 * 1024;
};

struct Question {
    /// Bytes of the largest tensor; all tensors of a bundle are of one order class.
    std::size_t tensor_bytes = 0;
    std::size_t bundle_bytes = 0;  ///< of all tensors together
    int ranks = 1;
    Policy policy = {};
};

struct Answer {
    Algorithm algorithm = Algorithm::automatic;
    std::size_t segment_bytes = 0;  ///< 0 where the algorithm has no segments
    friend bool operator==(const Answer&, const Answer&) = default;
};

constexpr OrderClass order_class_of(Algorithm algorithm) noexcept {
    switch (algorithm) {
        case Algorithm::ring: return OrderClass::ring;
        case Algorithm::hierarchical: return OrderClass::hierarchy;
        default: return OrderClass::tree;
    }
}

/// A ring cannot be had together with reproducible sums; whoever reads the configuration refuses
/// the pair.
constexpr bool contradictory(const Policy& policy) noexcept {
    return policy.reproducible && policy.forced == Algorithm::ring;
}

/// The order class of a tensor: by its own size, never by that of the bundle it is fused into, so
/// fusion does not change a sum. Tensors of different classes must not be fused.
constexpr OrderClass order_class_of(std::size_t tensor_bytes, const Policy& policy) noexcept {
    if (policy.forced != Algorithm::automatic) return order_class_of(policy.forced);
    const bool tree = policy.reproducible || policy.staging || tensor_bytes <= policy.small_bytes;
    if (tree) return OrderClass::tree;
    return policy.hierarchy ? OrderClass::hierarchy : OrderClass::ring;
}

constexpr Algorithm algorithm_of(const Question& question) noexcept {
    const auto& policy = question.policy;
    const bool small = question.bundle_bytes <= policy.small_bytes;
    if (policy.forced == Algorithm::direct && policy.staging) return Algorithm::staged;
    if (policy.forced != Algorithm::automatic) return policy.forced;
    if (policy.staging) return small ? Algorithm::symmetric : Algorithm::staged;
    switch (order_class_of(question.tensor_bytes, policy)) {
        case OrderClass::ring: return Algorithm::ring;
        case OrderClass::hierarchy: return Algorithm::hierarchical;
        case OrderClass::tree: break;
    }
    return small ? Algorithm::recursive_doubling : Algorithm::direct;
}

/// Direct algorithms have p segments of a chunk in flight where the ring has two: shorter ones, so
/// that they stay in cache too.
constexpr std::size_t direct_segment_bytes(int ranks, std::size_t segment_bytes) noexcept {
    const auto shorter = 2 * segment_bytes / static_cast<std::size_t>(std::max(ranks, 2));
    return std::min(segment_bytes, std::max<std::size_t>(shorter, 8 * 1024));
}

constexpr Answer choose(const Question& question) noexcept {
    const auto segment = question.policy.segment_bytes;
    switch (const auto algorithm = algorithm_of(question)) {
        case Algorithm::ring: return {algorithm, segment};
        case Algorithm::direct:
        case Algorithm::staged:
        case Algorithm::hierarchical:
        case Algorithm::parameter_server:
            return {algorithm, direct_segment_bytes(question.ranks, segment)};
        default: return {algorithm, 0};
    }
}

}  // namespace guozhuang::selection
