#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "mpi_job.hpp"
#include "sweep/collective.hpp"
#include "tensor_device.hpp"

namespace guozhuang::perf {

/// What is measured beside the library. All ranks make and use it alike, on the main thread only.
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

/// A baseline that can be chosen.
struct BaselineKind {
    std::string_view name;
    /// Makes the baseline, for tensors on the device, which outlives it; null: on the host.
    /// Collective. Throws a Refusal if it is not available, or not for such tensors.
    std::unique_ptr<Baseline> (*make)(const MpiJob& job, const TensorDevice* device);
};

/// MPI's own collectives, in memory of the host. They lack f16, bf16 and average reductions, and
/// counts beyond int.
std::unique_ptr<Baseline> make_mpi_baseline(const MpiJob& job, const TensorDevice* device);

/// What a program for a device does by hand where MPI knows nothing of devices: it copies to pinned
/// memory, waits, calls MPI, copies back and waits.
std::unique_ptr<Baseline> make_staged_baseline(const MpiJob& job, const TensorDevice* device);

}  // namespace guozhuang::perf
