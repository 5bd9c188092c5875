#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

/// Which algorithm moves a bundle: a pure function of what all ranks agree on. docs/algorithms.md says the same in words.
namespace guozhuang::selection {

enum class Operation : std::uint8_t { allreduce, all_gather, broadcast, all_to_all, reduce_scatter, barrier };
enum class Algorithm : std::uint8_t { automatic, ring, recursive_doubling, direct, parameter_server, tree, pairwise };

/// In which order the terms of a sum are added; algorithms of one class give the same bits.
enum class OrderClass : std::uint8_t {
    tree,  ///< balanced binary tree over rank index, split at the largest power of two below the count; partials rounded once
    ring   ///< block b: b+1, b+2, ..., b; elements, rounded once per hop
};

struct Settings {
    Algorithm forced = Algorithm::automatic;  ///< for allreduce; automatic: choose
    bool reproducible = false;                ///< order class tree always, so that every algorithm gives the same bits
    std::size_t small_bytes = 32 * 1024;      ///< up to here latency counts more than bytes
    std::size_t segment_bytes = 256 * 1024;   ///< largest message of algorithms that cut; two per chunk in flight should stay in L2
};

struct Question {
    Operation operation = Operation::allreduce;
    std::size_t tensor_bytes = 0;  ///< of the largest member; all members of a bundle are of one order class
    std::size_t bundle_bytes = 0;  ///< of all members together
    int ranks = 1;
    Settings settings = {};
};

struct Answer {
    Algorithm algorithm = Algorithm::automatic;
    std::size_t segment_bytes = 0;  ///< 0 where the algorithm has no segments
    friend bool operator==(const Answer&, const Answer&) = default;
};

/// Whether an algorithm can be forced: the four that do an allreduce.
constexpr bool does_allreduce(Algorithm algorithm) noexcept {
    return algorithm == Algorithm::ring || algorithm == Algorithm::recursive_doubling || algorithm == Algorithm::direct ||
           algorithm == Algorithm::parameter_server;
}

constexpr OrderClass order_class_of(Algorithm allreduce) noexcept {
    return allreduce == Algorithm::ring ? OrderClass::ring : OrderClass::tree;
}

/// A ring cannot be had together with reproducible sums; whoever reads the settings refuses the pair.
constexpr bool contradictory(const Settings& settings) noexcept {
    return settings.reproducible && settings.forced == Algorithm::ring;
}

/// The order class of a tensor: by its own size, never by that of the bundle it is fused into, so fusion does not change a sum. Tensors of
/// different classes must not be fused.
constexpr OrderClass order_class_of(std::size_t tensor_bytes, const Settings& settings) noexcept {
    if (settings.forced != Algorithm::automatic) return order_class_of(settings.forced);
    return settings.reproducible || tensor_bytes <= settings.small_bytes ? OrderClass::tree : OrderClass::ring;
}

constexpr Algorithm allreduce_algorithm(const Question& question) noexcept {
    const auto& settings = question.settings;
    if (settings.forced != Algorithm::automatic) return settings.forced;
    if (order_class_of(question.tensor_bytes, settings) == OrderClass::ring) return Algorithm::ring;
    return question.bundle_bytes <= settings.small_bytes ? Algorithm::recursive_doubling : Algorithm::direct;
}

/// Direct exchange has p segments of a chunk in flight where the ring has two: shorter ones, so that they stay in cache too.
constexpr std::size_t direct_segment_bytes(int ranks, std::size_t segment_bytes) noexcept {
    const auto shorter = 2 * segment_bytes / static_cast<std::size_t>(std::max(ranks, 2));
    return std::min(segment_bytes, std::max<std::size_t>(shorter, 8 * 1024));
}

constexpr Answer choose_allreduce(const Question& question) noexcept {
    const auto segment = question.settings.segment_bytes;
    switch (const auto algorithm = allreduce_algorithm(question)) {
        case Algorithm::ring: return {algorithm, segment};
        case Algorithm::direct:
        case Algorithm::parameter_server: return {algorithm, direct_segment_bytes(question.ranks, segment)};
        default: return {algorithm, 0};
    }
}

constexpr Answer choose(const Question& question) noexcept {
    const auto segment = question.settings.segment_bytes;
    switch (question.operation) {
        case Operation::allreduce: return choose_allreduce(question);
        case Operation::all_gather: return {Algorithm::ring, 0};
        case Operation::broadcast: return {Algorithm::tree, segment};
        case Operation::all_to_all: return {Algorithm::pairwise, 0};
        case Operation::reduce_scatter: return {Algorithm::direct, direct_segment_bytes(question.ranks, segment)};
        case Operation::barrier: return {Algorithm::tree, 0};
    }
    return {};
}

}  // namespace guozhuang::selection
