#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backends/device/arena_halves.hpp"
#include "backends/device/host_mover.hpp"
#include "backends/device/path.hpp"

namespace guozhuang::backends {

/// Reduces tensors over several hosts, on each of which the ranks reach each other's devices. Each
/// of the L ranks of a host owns a share of a chunk, one L-th of it: it reduces the share over the
/// arenas of its host, and only this goes by way of the host, where a HostMover reduces it among
/// the ranks that own the same share on the other hosts. Then it is written to all arenas. So each
/// rank takes one L-th of a bundle over the bus and the network.
///
/// Chunks of the bundle go through the ArenaHalves, and shares of two through pinned memory:
///
///     stream:  share 0 in, share 1 in, share 0 out, share 2 in, share 1 out, ...
///     mover:         move 0,      move 1,        move 2, ...
///
/// The streams of a host meet by PeerWords in one order, and a rank has announced what it has done
/// before it waits for others. Shares are moved in that order too: so all ranks come to the end.
class HierarchicalPath final : public Path {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;                      ///< its index
        std::shared_ptr<PeerArenas> arenas;  ///< of the ranks on this host; they are shared
        HostMover& mover;
        /// Reduces among the ranks that own this one's share; the mover runs it.
        std::unique_ptr<engine::Backend> across;
    };
    /// Large enough that a copy takes longer than its start. The same on all ranks.
    static constexpr std::size_t most_share_bytes = std::size_t{2} << 20;

    /// Throws what the driver throws.
    explicit HierarchicalPath(Dependencies dependencies);

    bool supports(const engine::Bundle& bundle) const noexcept override;
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override;
    bool was_released() const noexcept override { return halves_.words().was_released(); }
    void stop() noexcept override { of_.mover.stop(); }

private:
    struct Allreduce;

    void share_in(const Allreduce& allreduce, std::size_t chunk, std::uint32_t number);
    void share_out(const Allreduce& allreduce, std::size_t chunk, std::uint32_t number);
    /// In pinned memory: of the chunk in that half.
    std::span<std::byte> slot(std::size_t half) const;

    const Dependencies of_;
    ArenaHalves halves_;
    const device::PinnedMemory slots_;
};

}  // namespace guozhuang::backends
