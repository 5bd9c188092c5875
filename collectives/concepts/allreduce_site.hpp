#pragma once

#include <concepts>
#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>
#include <type_traits>

#include "collectives/concepts/reduce.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/allreduce_args.hpp"

namespace guozhuang {

/// A backend lends this to one allreduce on one rank: the bundle, memory, and the ways to the other
/// ranks.
///
/// `cut` cuts the bundle into this many blocks, and returns the arguments of the algorithm except
/// their scratch. `scratch` returns this many bytes, valid until the next call. `wire` is a Wire of
/// all ranks, `ring` one in which the ranks of a host are neighbours.
///
/// If all ranks stage for each other, `stage(args, move)` returns move(group, args) with their
/// PeerMemory: false if the operation was offered and did not take place. If there are several
/// hosts whose ranks share memory, `stage_on_host(args, move)` calls move(group, args) for the
/// ranks of this host, and `within` is the arithmetic of partial sums. Each of the `columns` has a
/// rank of every host: column c has local rank c, modulo the ranks of the host. `across` are the
/// Wires of this rank's columns, in ascending order; if it is in none, any one of them.
/// `may_double_by_host(bytes)` says on all ranks whether recursive doubling may use them for a
/// bundle of this size.
template <class S>
concept AllreduceSite = requires(S& site, int blocks, std::size_t bytes) {
    { site.cut(blocks) } -> std::same_as<AllreduceArgs>;
    { site.scratch(bytes) } -> std::same_as<std::span<std::byte>>;
    requires Wire<std::remove_reference_t<decltype(site.wire())>>;
    requires Wire<std::remove_reference_t<decltype(site.ring())>>;
    requires Wire<typename std::remove_reference_t<decltype(site.across())>::element_type>;
    { site.columns() } -> std::same_as<int>;
    { site.within() } -> std::convertible_to<const Reduce&>;
    { site.may_double_by_host(bytes) } -> std::same_as<bool>;
};

/// run_allreduce<Algorithm::ring>(site) does the allreduce of a site by a ring. The file of each
/// algorithm of the table (algorithms.hpp) defines it.
template <Algorithm algorithm>
inline constexpr auto run_allreduce = nullptr;

}  // namespace guozhuang
