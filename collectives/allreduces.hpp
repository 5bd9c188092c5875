#pragma once

#include <cstddef>
#include <guozhuang/error.hpp>
#include <iterator>
#include <type_traits>
#include <utility>

#include "collectives/algorithms.hpp"
#include "collectives/concepts/allreduce_site.hpp"
#include "collectives/direct/direct_allreduce.hpp"
#include "collectives/hierarchical/hierarchical_allreduce.hpp"
#include "collectives/recursive/doubling_allreduce.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "collectives/staged/staged_allreduce.hpp"

/// Every allreduce algorithm of the table, and the function that runs one.
namespace guozhuang {

namespace detail {
/// Runs the algorithm if it is the chosen one; returns whether it is.
template <Algorithm algorithm, AllreduceSite Site>
bool run_if_chosen(Algorithm chosen, Site& site) {
    static_assert(!std::is_null_pointer_v<decltype(run_allreduce<algorithm>)> ||
                      algorithm == Algorithm::automatic,
                  "an algorithm of the table in collectives/algorithms.hpp has no run_allreduce, "
                  "or the file that has it is not included here");
    if constexpr (algorithm != Algorithm::automatic)
        if (chosen == algorithm) return run_allreduce<algorithm>(site), true;
    return false;
}
}  // namespace detail

/// Throws Error(internal) for automatic, which selection replaces by an algorithm.
template <AllreduceSite Site>
void allreduce(Algorithm chosen, Site& site) {
    const bool done = [&]<std::size_t... n>(std::index_sequence<n...>) {
        return (detail::run_if_chosen<selection::algorithms[n].algorithm>(chosen, site) || ...);
    }(std::make_index_sequence<std::size(selection::algorithms)>());
    if (!done)
        throw Error(ErrorCode::internal, "the log names an algorithm that does no allreduce");
}

}  // namespace guozhuang
