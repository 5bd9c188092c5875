#pragma once

#include <cstdint>
#include <memory>

#include "backends/device/arena_halves.hpp"
#include "backends/device/path.hpp"
#include "backends/device/results.hpp"

namespace guozhuang::backends {

/// Moves tensors around the ring of the ranks, whose devices need reach no more than the memory of
/// their left neighbours. Each rank puts what it contributes into an arena of its own, and in each
/// hop takes one block from the arena of its left neighbour into its own. The hops of an allreduce
/// are those of collectives/ring: ranks-1 that add the neighbour's block to the own one, by one
/// kernel each, then as many that copy sums.
///
/// Chunks of the bundle go through the ArenaHalves:
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
    RingPath(std::shared_ptr<device::Driver> driver, std::shared_ptr<PeerArenas> arenas,
             const Results& results);

    bool supports(const engine::Bundle& bundle) const noexcept override;
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override;
    bool was_released() const noexcept override { return halves_.words().was_released(); }
    void stop() noexcept override {}

private:
    struct Hops;
    /// One operation around the ring; defined for those that this path moves.
    template <OperationKind kind>
    struct Work;

    template <class Operation>
    void run(const Operation& operation);
    template <class Operation>
    void fill(const Operation& operation, std::size_t chunk, std::uint32_t number);
    template <class Operation>
    void go_around(const Operation& operation, std::size_t chunk, std::uint32_t number);
    std::uint32_t begin_of(std::uint32_t number) const noexcept;

    ArenaHalves halves_;
    const int left_, right_;
    const Results& results_;
};

}  // namespace guozhuang::backends
