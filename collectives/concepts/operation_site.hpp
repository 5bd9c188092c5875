#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/concepts/reduce.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/operation_kind.hpp"
#include "collectives/policy.hpp"

namespace guozhuang {

/// One tensor of an operation, on this rank.
struct SiteTensor {
    std::span<std::byte> memory;
    DType dtype = DType::f32;
    std::int64_t rows = 0;  ///< of dim 0; 0 if the operation does not count rows
    std::size_t row_bytes = 0;
    std::span<const std::int64_t> splits = {};  ///< rows for each rank; reduce_scatter: or none
};

/// A backend lends this to one operation on one rank: its tensors and options, memory, arithmetic,
/// and the ways to the other ranks.
///
/// `result` returns the memory of a tensor's result, cut into these rows. It and `require_possible`
/// throw Error(wire) for impossible numbers of rows. `scratch` returns this many bytes, valid until
/// the next call or the next algorithm; `wide_integers` returns memory for this many numbers, valid
/// until the next call. `blocks` keeps its memory between operations.
///
/// `wire` is a Wire of all ranks on `hosts`, `ring` one in which those of a host are neighbours.
/// `root` is the root's number there, and `in_ring_order` puts blocks of the ranks into its order.
/// If `stages()`, all ranks have memory in which they stage for each other: `stage(bytes, move)`
/// calls move(group) with their PeerMemory. `bytes`: how many the operation moves, the same on all
/// ranks. If `has_levels()`, at least the ranks of each host have, and `by_levels(bytes, move)`
/// calls move(group, ranks) with the PeerMemory of this host and the hierarchical::RanksByHost of
/// `ring`; it may be one host.
///
/// For reductions, `reduce` is the arithmetic of a dtype, `within` that of partial sums, and
/// `sum_site` lends what an allreduce algorithm needs for some tensors of one dtype. Integers of up
/// to 32 bits are averaged in 64 bits where `averages_in_i64`; `widen` and `narrow` convert them.
/// `trace` notes an algorithm in the timeline for as long as its result lives.
template <class S>
concept OperationSite = requires(S& site, std::size_t i, DType dtype, ReduceOp op, double factor,
                                 std::span<const std::int64_t> rows, std::span<std::byte> memory,
                                 std::span<std::int64_t> integers, std::string_view name,
                                 std::span<const std::span<std::byte>> tensors) {
    { site.tensors() } -> std::same_as<std::size_t>;
    { site.tensor(i) } -> std::same_as<SiteTensor>;
    { site.root() } -> std::same_as<int>;
    { site.op() } -> std::same_as<ReduceOp>;
    { site.prescale() } -> std::same_as<double>;
    { site.postscale() } -> std::same_as<double>;
    { site.policy() } -> std::same_as<const selection::Policy&>;
    { site.result(i, rows) } -> std::same_as<std::vector<std::span<std::byte>>>;
    { site.require_possible(i, rows) } -> std::same_as<void>;
    { site.blocks() } -> std::same_as<Blocks&>;
    { site.scratch(i) } -> std::same_as<std::span<std::byte>>;
    { site.wide_integers(i) } -> std::same_as<std::span<std::int64_t>>;
    requires Wire<std::remove_reference_t<decltype(site.wire())>>;
    requires Wire<std::remove_reference_t<decltype(site.ring())>>;
    { site.in_ring_order(tensors) } -> std::same_as<std::vector<std::span<std::byte>>>;
    { site.stages() } -> std::same_as<bool>;
    { site.has_levels() } -> std::same_as<bool>;
    { site.hosts() } -> std::same_as<int>;
    { site.reduce(dtype, op) } -> std::convertible_to<const Reduce&>;
    { site.within(dtype) } -> std::convertible_to<const Reduce&>;
    { site.sum_site(dtype, tensors, i, i) } -> AllreduceSite;
    site.adasum_pair(dtype);
    { site.scale(dtype, memory, factor) } -> std::same_as<void>;
    { site.averages_in_i64(dtype) } -> std::same_as<bool>;
    { site.widen(integers, dtype, memory) } -> std::same_as<void>;
    { site.narrow(dtype, memory, integers) } -> std::same_as<void>;
    site.trace(name, i, i);
};

/// run_operation<OperationKind::broadcast>(site) does the broadcast of a site. The operation's file
/// in operations/ defines it; operations that only the log handles have none.
template <OperationKind kind>
inline constexpr auto run_operation = nullptr;

}  // namespace guozhuang
