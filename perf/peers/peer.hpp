#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "job.hpp"
#include "sweep/collective.hpp"

namespace guozhuang::perf {

/// What is measured beside the library: made and used by all ranks alike, on the main thread only.
class Peer {
public:
    virtual ~Peer() = default;
    /// Of its series; the names of its steps begin with it.
    virtual std::string_view name() const noexcept = 0;
    /// Its own way to run a case: in place on `input`, or from there to `output` of at least
    /// output_count() elements. The peer outlives it. Throws std::invalid_argument for what the
    /// peer does not have.
    virtual std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                           std::span<std::byte> output) = 0;
    /// Sums f32 over all ranks, each buffer in place, in this order. Back when all are done.
    virtual void sum(std::span<const std::span<std::byte>> buffers) = 0;
};

/// A peer that a program offers.
struct PeerKind {
    std::string_view name;
    /// Makes the peer. Collective; throws a Refusal if it cannot be had.
    std::unique_ptr<Peer> (*make)(const Job& job);
};

/// MPI's own collectives. They lack f16, bf16 and average reductions, and counts beyond int.
std::unique_ptr<Peer> make_mpi_peer(const Job& job);

}  // namespace guozhuang::perf
