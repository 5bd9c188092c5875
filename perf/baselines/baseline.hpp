#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "mpi_job.hpp"
#include "sweep/collective.hpp"

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
    /// Makes the baseline. Collective. Throws a Refusal if it is not available.
    std::unique_ptr<Baseline> (*make)(const MpiJob& job);
};

/// MPI's own collectives. They lack f16, bf16 and average reductions, and counts beyond int.
std::unique_ptr<Baseline> make_mpi_baseline(const MpiJob& job);

}  // namespace guozhuang::perf
