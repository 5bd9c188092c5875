#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nccl.h>
#include <vector>

#include "support/emulated_nccl/segment.hpp"

namespace guozhuang::emulated_nccl {

enum class Kind : std::uint32_t {
    allreduce,
    broadcast,
    all_gather,
    reduce_scatter,
    reduce,
    send,
    receive
};

/// One call of a rank; in a collective it must be the same on all ranks.
struct Call {
    Kind kind;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    int peer = 0;  ///< root, destination or source
    std::uint64_t count;
    friend bool operator==(const Call&, const Call&) = default;
};

struct Operation {
    Call call;
    const std::byte* from;
    std::byte* into;
};

/// A group of operations, as one kernel.
struct Launch {
    std::shared_ptr<Segment> segment;
    int rank, ranks, device;
    std::vector<Operation> operations;
    bool fails;  ///< it never ends by itself
    /// Shared with the communicator: whether it is aborted, and how many launches are not done.
    std::shared_ptr<std::atomic<bool>> aborted;
    std::shared_ptr<std::atomic<int>> in_flight;
};

/// Runs the group with the other ranks; returns early if it is aborted. Called on a stream's
/// thread.
void run(const Launch& launch);

}  // namespace guozhuang::emulated_nccl
