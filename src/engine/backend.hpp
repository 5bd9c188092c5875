#pragma once

#include <cstdint>
#include <guozhuang/handle.hpp>
#include <guozhuang/tensor.hpp>
#include <span>
#include <vector>

#include "collectives/policy.hpp"
#include "protocol/operation.hpp"

namespace guozhuang::engine {

/// One tensor of a bundle, on this rank.
struct BundleEntry {
    const TensorView& tensor;                   ///< the input; in place the output too
    std::span<const std::int64_t> splits = {};  ///< all_to_all: rows for each rank
    /// Filled by all_gather, all_to_all and reduce_scatter; null for the others.
    Result* result = nullptr;
};

/// The tensors that one entry of the log moves together. Every rank of the set runs the same
/// bundle, with the same entries in the same order.
struct Bundle {
    protocol::OperationKind operation = protocol::OperationKind::allreduce;
    ReduceOp op = ReduceOp::sum;
    double prescale = 1, postscale = 1;
    int root = 0;  ///< group rank
    DeviceKind device = DeviceKind::host;
    /// What an average divides by: the ranks that have not joined.
    int contributors = 1;
    selection::Policy policy;
    std::vector<BundleEntry> entries;
};

/// Runs bundles for one kind of memory: combines algorithms, a wire and a device. One thread calls
/// run(): that of its communication stream, or whichever drives the engine if it runs inline.
class Backend {
public:
    virtual ~Backend() = default;
    /// Blocks until the results are in place. Throws Error if the job is aborted or the transport
    /// fails; the contents of the bundle's tensors are then undefined.
    virtual void run(const Bundle& bundle) = 0;
};

}  // namespace guozhuang::engine
