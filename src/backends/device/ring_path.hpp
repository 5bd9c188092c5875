#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "backends/device/path.hpp"
#include "backends/device/peer_arenas.hpp"
#include "backends/device/results.hpp"

namespace guozhuang::backends {

/// Moves tensors around the ring of the ranks, whose devices need reach no more than the memory of
/// their left neighbours. Each rank puts what it contributes into an arena of its own, and in each
/// hop takes one block from the arena of its left neighbour into its own. The hops of an allreduce
/// are those of collectives/ring: ranks-1 that add the neighbour's block to the own one, by one
/// kernel each, then as many that copy sums.
///
/// A chunk of the bundle is in one half of the arena while the next is put into the other:
///
///     fill 0, fill 1, hops of 0, finish 0, fill 2, hops of 1, finish 1, ...
///
/// The streams of neighbours meet by PeerWords. A hop waits until the left neighbour has `filled`
/// its half, or `passed` the hop before; a half is filled again when the right neighbour has
/// `taken` all of it. Nothing else need be waited for: a rank copies a sum over a block that its
/// right neighbour has read, or else that sum could not have come around the ring.
class RingPath final : public Path {
public:
    /// The arenas are shared: of each rank its own and its left neighbour's.
    RingPath(std::shared_ptr<device::Driver> driver, PeerArenas& arenas, const Results& results);

    bool supports(const engine::Bundle& bundle) const noexcept override;
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override;
    bool was_released() const noexcept override { return arenas_.words().was_released(); }
    void stop() noexcept override {}

private:
    struct Operation;
    struct InPlace;
    struct Allreduce;
    struct Broadcast;
    struct AllGather;

    template <class Kind>
    void run(const Kind& operation);
    template <class Kind>
    void fill(const Kind& operation, std::size_t chunk, std::uint32_t number);
    template <class Kind>
    void go_around(const Kind& operation, std::size_t chunk, std::uint32_t number);
    std::uint32_t begin_of(std::uint32_t number) const noexcept;
    std::size_t half_bytes() const;
    /// Of the arena of this rank, or its left neighbour.
    std::span<std::byte> half(int rank, std::size_t half) const;

    const std::shared_ptr<device::Driver> driver_;
    const int rank_, ranks_, left_, right_;
    PeerArenas& arenas_;
    const Results& results_;
    std::atomic<std::uint32_t> chunks_{0};  ///< that have been enqueued
};

}  // namespace guozhuang::backends
