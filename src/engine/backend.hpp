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
    const TensorView& tensor;                   ///< in place: input and output; otherwise the input
    std::span<const std::int64_t> splits = {};  ///< all_to_all: rows for each rank
    /// filled by all_gather, all_to_all and reduce_scatter
    Result* result = nullptr;
};

/// Fused tensors: what one entry of the log moves. Every rank of the set runs the same bundle,
/// entry by entry alike.
struct Bundle {
    protocol::OperationKind operation = protocol::OperationKind::allreduce;
    ReduceOp op = ReduceOp::sum;
    double prescale = 1, postscale = 1;
    int root = 0;  ///< group rank
    DeviceKind device = DeviceKind::host;
    /// what an average divides by: ranks that have joined contribute what changes no result
    int contributors = 1;
    selection::Policy policy;
    std::vector<BundleEntry> entries;
};

/// Marries algorithms, a wire and a device. One per communication stream: `run` is called on that
/// stream's thread only.
class Backend {
public:
    virtual ~Backend() = default;
    /// Blocks until the results are in place. Throws Error when the job is aborted or the transport
    /// fails: the bundle is then undefined.
    virtual void run(const Bundle& bundle) = 0;
};

}  // namespace guozhuang::engine
