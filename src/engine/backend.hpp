#pragma once

#include <cstdint>
#include <guozhuang/handle.hpp>
#include <guozhuang/tensor.hpp>
#include <span>
#include <string_view>
#include <vector>

namespace guozhuang::engine {

/// The last three are matters of the log; no backend runs them.
enum class Operation : std::uint8_t {
    allreduce,
    all_gather,
    broadcast,
    all_to_all,
    reduce_scatter,
    barrier,
    create_process_set,
    remove_process_set,
    join
};
std::string_view name_of(Operation operation) noexcept;

/// How algorithms follow from sizes. Every log entry carries the policy of the rank that appended
/// it, so that no rank chooses for itself.
struct Policy {
    Algorithm forced = Algorithm::automatic;  ///< for allreduce
    bool reproducible = false;
    bool staging = false;  ///< the ranks have memory in which they stage data for each other
    std::uint64_t small_bytes = 0;
    std::uint64_t segment_bytes = 0;
    friend bool operator==(const Policy&, const Policy&) = default;
};

/// One tensor of a bundle, on this rank.
struct Piece {
    const TensorView& tensor;                   ///< in place: input and output; otherwise the input
    std::span<const std::int64_t> splits = {};  ///< all_to_all: rows for each rank
    /// filled by all_gather, all_to_all and reduce_scatter
    Result* result = nullptr;
};

/// Fused tensors: what one entry of the log moves. Every rank of the set runs the same bundle,
/// piece by piece alike.
struct Bundle {
    Operation operation = Operation::allreduce;
    ReduceOp op = ReduceOp::sum;
    double prescale = 1, postscale = 1;
    int root = 0;  ///< position in the set
    DeviceKind device = DeviceKind::host;
    /// what an average divides by: ranks that have joined stand in with what changes no result
    int contributors = 1;
    Policy policy;
    std::vector<Piece> pieces;
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
