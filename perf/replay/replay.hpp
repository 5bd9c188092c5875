#pragma once

#include <cstddef>
#include <string>

#include "json_lines.hpp"
#include "memory.hpp"
#include "mpi_job.hpp"
#include "peers/baseline.hpp"

namespace guozhuang::perf {

struct ReplayOptions {
    std::string set;  ///< see read_gradient_set()
    std::size_t steps = 20;
    MemoryKind memory = MemoryKind::ordinary;  ///< of the gradients
    const BaselineKind* baseline = nullptr;    ///< measured too
};

/// Times one training step's communication: a model's gradients become final in backward order,
/// through DistributedOptimizer's hook, then the optimizer steps. There is no compute in between,
/// so nothing overlaps: exposed time, from the end of backward to the end of the step, is nearly
/// all of it. A step takes as long as its slowest rank. The baseline's ways (sums; ours also
/// divides) take turns with it, step by step, on the same gradients: each tensor by itself; fused
/// through a buffer of 25 MiB; all in one flat buffer that the trainer happens to have. The fastest
/// of them is also written under the baseline's bare name. Collective. Throws a Refusal for what is
/// not a gradient set, and std::runtime_error if a gradient comes out wrong in the untimed first
/// steps.
void replay(const MpiJob& job, const ReplayOptions& options, JsonLines& lines);

}  // namespace guozhuang::perf
