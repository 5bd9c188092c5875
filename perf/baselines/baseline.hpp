#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "json_lines.hpp"
#include "mpi_job.hpp"
#include "sweep/collective.hpp"
#include "tensor_device.hpp"

namespace guozhuang::perf {

/// A competitor to measure beside the library. All ranks make the same calls, on the main thread.
class Baseline {
public:
    virtual ~Baseline() = default;
    /// The name of its series; the names of its steps begin with it.
    virtual std::string_view name() const noexcept = 0;
    /// Its way to run a case: in place on `input`, or from there to `output` of at least
    /// output_count() elements. The baseline must outlive the series. Throws std::invalid_argument
    /// for a case that the baseline cannot run.
    virtual std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                           std::span<std::byte> output) = 0;
    /// Sums f32 over all ranks, in place, buffer by buffer. Returns when all are done.
    virtual void sum(std::span<const std::span<std::byte>> buffers) = 0;
};

/// A baseline that cannot be had on this machine, and why. Thrown on all ranks alike.
class Unavailable : public Refusal {
public:
    using Refusal::Refusal;
};

/// A baseline that can be chosen.
struct BaselineKind {
    std::string_view name;
    /// Makes the baseline, for tensors on the device, which outlives it; null: on the host.
    /// Collective. Throws a Refusal if it is not for such tensors, Unavailable if it cannot be had.
    std::unique_ptr<Baseline> (*make)(const MpiJob& job, const TensorDevice* device);
};

using Baselines = std::vector<std::unique_ptr<Baseline>>;

/// Makes the chosen baselines that are available. For each of the others it prints the reason, and
/// writes it as a line. Collective.
Baselines make_baselines(const MpiJob& job, std::span<const BaselineKind* const> chosen,
                         const TensorDevice* device, JsonLines& lines);

/// MPI's own collectives, in memory of the host. They lack f16, bf16 and average reductions, and
/// counts beyond int.
std::unique_ptr<Baseline> make_mpi_baseline(const MpiJob& job, const TensorDevice* device);
/// The same with Open MPI's ring for every allreduce.
std::unique_ptr<Baseline> make_mpi_ring_baseline(const MpiJob& job, const TensorDevice* device);

/// Staging by hand, where MPI knows nothing of devices: copies to pinned memory, waits, calls MPI,
/// copies back and waits. Without a device it is make_host_staged_baseline().
std::unique_ptr<Baseline> make_staged_baseline(const MpiJob& job, const TensorDevice* device);
/// Sums of f32 on one host, without a device, through memory that the ranks have mapped, with
/// nothing negotiated. Shows the cost of copying there and back.
std::unique_ptr<Baseline> make_host_staged_baseline(const MpiJob& job);
/// Sums of f32 by allreduce in the baseline's own memory, which all ranks have mapped: nothing is
/// staged. The yardstick for tensors in shared memory.
std::unique_ptr<Baseline> make_pushed_baseline(const MpiJob& job, const TensorDevice* device);

/// NCCL as a program calls it: one ncclAllReduce, or a group of them, by a communicator of its own.
/// NCCL itself says whether ranks may share a GPU.
std::unique_ptr<Baseline> make_nccl_baseline(const MpiJob& job, const TensorDevice* device);

}  // namespace guozhuang::perf
