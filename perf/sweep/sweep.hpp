#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <optional>
#include <string>
#include <vector>

#include "baselines/baseline.hpp"
#include "json_lines.hpp"
#include "memory.hpp"
#include "mpi_job.hpp"
#include "sweep/collective.hpp"

namespace guozhuang::perf {

struct SweepOptions {
    Collective collective = Collective::allreduce;
    std::size_t min_bytes = 4;
    std::size_t max_bytes = 256u << 20;
    std::size_t factor = 4;  ///< from one size to the next
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    std::string algorithm = "auto";  ///< as the library was configured
    MemoryKind memory = MemoryKind::ordinary;
    std::optional<DeviceKind> device;  ///< of the tensors, whose memory is then MemoryKind::device
    std::vector<const BaselineKind*> baselines;  ///< measured beside the library
    bool check = false;
    /// Iterations of each series; empty: as many as fit into the budget.
    std::optional<std::size_t> iterations;
    std::optional<int> beside = {};  ///< busy threads of another program on each host
    bool back_to_back = false;       ///< only the first operation of a round follows a barrier
    bool watch =
        false;  ///< measures a size again that others disturbed, and says how much they did
    double seconds = 2;  ///< budget of one size, all series together
};

/// Times a collective over a range of sizes. Prints a row per size, and writes a line per size and
/// series. Collective. Returns the number of wrong elements in the library's results on all ranks;
/// errors in a baseline's are only shown. Throws a Refusal for what cannot be measured or
/// checked.
///
/// Operations on tensors of a device are timed from their submission until the device is done, and
/// the time of an allreduce is shown beside its bound (bounds.hpp).
///
/// Beside busy threads, operations follow each other without a barrier of MPI, whose ranks would
/// lose their cores in it; medians and means are shown, and those of a hop through pipes, measured
/// in the same turns.
///
/// Back to back, operations follow each other, too: a round is timed as a whole, and each of its
/// operations counts for an even part. An operation behind a barrier takes longer between hosts,
/// because MPI's barrier lets one rank leave half a round trip before another.
///
/// Otherwise an iteration takes as long as its slowest rank. The series alternate in small rounds
/// and share their buffers, so a disturbance hits all of them.
std::uint64_t sweep(const MpiJob& job, const SweepOptions& options, JsonLines& lines);

}  // namespace guozhuang::perf
