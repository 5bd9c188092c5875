#pragma once

#include <memory>
#include <utility>

#include "backends/device/arena_halves.hpp"
#include "backends/device/path.hpp"
#include "backends/device/results.hpp"

namespace guozhuang::backends {

/// Moves tensors on devices whose memory all ranks reach. Each rank puts what it contributes into
/// an arena of its own, and takes what it needs from the arenas of all, by kernels and copies of
/// its own; an allreduce is reduced block by block, each by one rank, into the arenas of all. An
/// element is summed up along the host's tree over the ranks: the same bits on every path.
///
/// Chunks of the bundle go through the ArenaHalves:
///
///     fill 0, fill 1, meet, take 0, meet, finish 0, fill 2, meet, take 1, meet, finish 1, ...
///
/// The streams meet by PeerWords in one order on all ranks, and a rank has announced what
/// it has done before it waits for the others: so they come to the end, whatever the program does.
class DirectPath final : public Path {
public:
    /// The arenas are shared.
    DirectPath(std::shared_ptr<device::Driver> driver, std::shared_ptr<PeerArenas> arenas,
               const Results& results)
        : halves_(std::move(driver), std::move(arenas)), results_(results) {}

    bool supports(const engine::Bundle& bundle) const noexcept override;
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override { halves_.words().release(halves_.chunks()); }
    bool was_released() const noexcept override { return halves_.words().was_released(); }
    void stop() noexcept override {}

private:
    struct WithResults;
    /// One operation through the arenas; defined for those that this path moves.
    template <OperationKind kind>
    struct Work;

    template <class Operation>
    void run(const Operation& operation);

    ArenaHalves halves_;
    const Results& results_;
};

}  // namespace guozhuang::backends
