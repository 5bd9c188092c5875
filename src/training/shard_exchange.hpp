#pragma once

#include <guozhuang/sharded_optimizer.hpp>
#include <string>
#include <vector>

#include "training/shard_bundles.hpp"

namespace guozhuang {

/// Moves bundles between the ranks of a ShardedOptimizer. Every rank begins the same operations on
/// a bundle; each is ended before the next begins.
struct ShardExchange {
    const std::vector<Parameter>& parameters;
    const ShardedOptimizerOptions& options;
    std::string name = {};  ///< of the optimizer, the same on all ranks

    /// Begins the reduce-scatter of the gradients, of copies if the bundle is packed.
    void send_gradients(ShardBundle& bundle, std::size_t number) const;
    /// Waits for the averages of this rank's elements, and adds them to the sum of earlier passes.
    static void take_gradients(ShardBundle& bundle);
    /// Begins the all-gather of the values, of copies if the bundle is packed.
    void send_values(ShardBundle& bundle, std::size_t number) const;
    /// Waits for the values, if they are on their way.
    void take_values(ShardBundle& bundle) const;
};

}  // namespace guozhuang
