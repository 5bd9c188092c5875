#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/sampler.hpp>
#include <span>
#include <vector>

#include "training/random.hpp"

namespace guozhuang {

/// The samples 0 .. samples-1 in the order of an epoch.
inline std::vector<std::size_t> sample_order(std::size_t samples, std::uint64_t seed,
                                             std::uint64_t epoch, bool shuffle) {
    auto order = numbers_below(samples);
    if (shuffle) Random(seed, epoch).shuffle(std::span(order));
    return order;
}

/// Makes the number of samples a multiple of the ranks, if the tail says so.
inline void even_out(std::vector<std::size_t>& order, std::size_t ranks, Tail tail) {
    if (tail == Tail::drop) order.resize(order.size() / ranks * ranks);
    if (tail == Tail::pad && !order.empty())
        for (std::size_t i = 0; order.size() % ranks != 0; ++i) order.push_back(order[i]);
}

}  // namespace guozhuang
