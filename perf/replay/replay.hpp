#pragma once

#include <cstddef>
#include <guozhuang/tensor.hpp>
#include <optional>
#include <string>
#include <vector>

#include "baselines/baseline.hpp"
#include "json_lines.hpp"
#include "memory.hpp"
#include "mpi_job.hpp"

namespace guozhuang::perf {

struct ReplayOptions {
    std::string set;  ///< see read_gradient_set()
    std::size_t steps = 20;
    bool calls = false;  ///< also one asynchronous call for each gradient
    bool watch = false;  ///< measures again if others disturbed it, and says how much they did
    MemoryKind memory = MemoryKind::ordinary;    ///< of the gradients
    std::optional<DeviceKind> device;            ///< theirs; the memory is then MemoryKind::device
    std::vector<const BaselineKind*> baselines;  ///< measured beside the library
};

/// Times the communication of one training step: gradients of a model become ready in backward
/// order, through DistributedOptimizer's hook, then the optimizer steps. Collective.
///
/// There is no computation in between, so nothing overlaps: exposed time, from the end of backward
/// to the end of the step, is nearly all of it. A step takes as long as its slowest rank. The
/// baselines' ways take turns with it, step by step, on the same gradients: each tensor by itself;
/// fused through a buffer of 25 MiB; and all as one flat buffer, as if the trainer had one. They
/// only add up; the library also divides. The fastest of a baseline is written under its bare name,
/// too.
///
/// With gradients on a device the host enqueues all work and then waits once, until the device is
/// done; the time is shown beside its bound (bounds.hpp).
///
/// Throws a Refusal for a file that is not a gradient set, and std::runtime_error if a gradient is
/// wrong in the untimed first steps.
void replay(const MpiJob& job, const ReplayOptions& options, JsonLines& lines);

}  // namespace guozhuang::perf
