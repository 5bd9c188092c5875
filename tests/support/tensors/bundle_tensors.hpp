#pragma once

#include <vector>

namespace guozhuang::test {

/// A bundle's tensors (or the blocks of one), on one rank: [tensor][element].
template <class Element>
using BundleTensors = std::vector<std::vector<Element>>;

/// The tensors of all ranks: [rank][tensor][element].
template <class Element>
using ByRank = std::vector<BundleTensors<Element>>;

}  // namespace guozhuang::test
