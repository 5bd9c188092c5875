#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "mpi_job.hpp"
#include "sweep/collective.hpp"

namespace guozhuang::perf {

/// What is measured beside the library: made and used by all ranks alike, on the main thread only.
class Baseline {
public:
    virtual ~Baseline() = default;
    /// Of its series; the names of its steps begin with it.
    virtual std::string_view name() const noexcept = 0;
    /// Its own way to run a case: in place on `input`, or from there to `output` of at least
    /// output_count() elements. The baseline outlives it. Throws std::invalid_argument for what the
    /// baseline does not have.
    virtual std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                           std::span<std::byte> output) = 0;
    /// Sums f32 over all ranks, each buffer in place, in this order. Back when all are done.
    virtual void sum(std::span<const std::span<std::byte>> buffers) = 0;
};

/// A baseline that a program offers.
struct BaselineKind {
    std::string_view name;
    /// Makes the baseline. Collective; throws a Refusal if it cannot be had.
    std::unique_ptr<Baseline> (*make)(const MpiJob& job);
};

/// MPI's own collectives. They lack f16, bf16 and average reductions, and counts beyond int.
std::unique_ptr<Baseline> make_mpi_baseline(const MpiJob& job);

}  // namespace guozhuang::perf
