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
/// `cut` cuts the bundle into so many blocks and gives the arguments of the algorithm, all but
/// their scratch; `scratch` gives so many bytes, until the next call. `wire` is a Wire of all
/// ranks, `ring` one in which the ranks of a host are neighbours.
///
/// Where all ranks stage for each other, `stage(args, move)` returns move(group, args) with their
/// PeerMemory: false if the operation was offered and has not taken place. Where there are several
/// hosts with as many ranks each, `stage_on_host(args, move)` calls move(group, args) for the ranks
/// of this host, `across` is a Wire of the ranks that have this one's number on each host, and
/// `within` the arithmetic of sums that are not yet complete.
template <class S>
concept AllreduceSite = requires(S& site, int blocks, std::size_t bytes) {
    { site.cut(blocks) } -> std::same_as<AllreduceArgs>;
    { site.scratch(bytes) } -> std::same_as<std::span<std::byte>>;
    requires Wire<std::remove_reference_t<decltype(site.wire())>>;
    requires Wire<std::remove_reference_t<decltype(site.ring())>>;
    requires Wire<std::remove_reference_t<decltype(site.across())>>;
    { site.within() } -> std::convertible_to<const Reduce&>;
};

/// run_allreduce<Algorithm::ring>(site) does the allreduce of a site by a ring. The file of each
/// algorithm of the table (algorithms.hpp) says how.
template <Algorithm algorithm>
inline constexpr auto run_allreduce = nullptr;

}  // namespace guozhuang
