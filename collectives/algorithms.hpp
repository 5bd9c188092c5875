#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <iterator>
#include <string_view>

/// The table of allreduce algorithms. All code that handles every algorithm uses it: configuration,
/// selection, dispatch, the choices of gz-perf, tests.
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

/// How an algorithm cuts its blocks into segments.
enum class Segments : std::uint8_t {
    none,
    longest,  ///< as long as the policy allows: two of a chunk are in flight
    shared,   ///< shorter on more ranks: one for each rank of a chunk is in flight
    staged    ///< shorter: the segments of a chunk add up to half of the longest
};

struct AlgorithmRow {
    Algorithm algorithm;
    std::string_view name;
    OrderClass order = OrderClass::tree;
    Segments segments = Segments::none;
    /// GUOZHUANG_ALGORITHM accepts it; the others are chosen where ranks share memory.
    bool by_name = false;
};

/// The algorithms by number. run_allreduce (allreduces.hpp) runs one.
inline constexpr AlgorithmRow algorithms[] = {
    {.algorithm = Algorithm::automatic, .name = "auto", .by_name = true},
    {.algorithm = Algorithm::ring,
     .name = "ring",
     .order = OrderClass::ring,
     .segments = Segments::longest,
     .by_name = true},
    {.algorithm = Algorithm::recursive_doubling, .name = "recursive_doubling", .by_name = true},
    {.algorithm = Algorithm::direct,
     .name = "direct",
     .segments = Segments::shared,
     .by_name = true},
    {.algorithm = Algorithm::parameter_server,
     .name = "parameter_server",
     .segments = Segments::shared,
     .by_name = true},
    {.algorithm = Algorithm::staged, .name = "staged", .segments = Segments::staged},
    {.algorithm = Algorithm::hierarchical,
     .name = "hierarchical",
     .order = OrderClass::hierarchy,
     .segments = Segments::shared},
};

constexpr bool has_a_row_for_each_algorithm() noexcept {
    std::size_t number = 0;
    for (const auto& row : algorithms)
        if (static_cast<std::size_t>(row.algorithm) != number++) return false;
    return number == static_cast<std::size_t>(last_of(Algorithm{})) + 1;
}
static_assert(has_a_row_for_each_algorithm(),
              "the table has one row for each Algorithm, in the order of their numbers, up to "
              "last_of(Algorithm), which stand in guozhuang/types.hpp");

constexpr const AlgorithmRow& row_of(Algorithm algorithm) noexcept {
    return algorithms[static_cast<std::size_t>(algorithm)];
}

constexpr OrderClass order_class_of(Algorithm algorithm) noexcept {
    return row_of(algorithm).order;
}

/// A ring cannot give reproducible sums; the reader of the configuration refuses the pair.
constexpr bool contradictory(Algorithm forced, bool reproducible) noexcept {
    return reproducible && order_class_of(forced) != OrderClass::tree;
}

}  // namespace guozhuang::selection
