#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/device/host_mover.hpp"
#include "backends/device/path.hpp"
#include "backends/device/results.hpp"
#include "collectives/layout/fragments.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"

namespace guozhuang::backends {

/// Moves tensors on a device by way of the host, where nothing better is possible: it needs neither
/// a peer's memory nor its GPU. A chunk of the bundle is copied into pinned memory, moved among the
/// ranks by the algorithms of the host, and copied back, while the chunks before and after it are
/// copied. All copies are enqueued at once, in both directions beside each other, and the stream
/// waits for the last at the end:
///
///     stream:  copy in 0, in 1, in 2, in 3, wait until 0 is out, copy in 4, ...
///     mover:   wait until 0 is in, move it, wait until 1 is in, move it, ...
///     out:     wait until 0 is moved, copy out 0, wait until 1 is moved, copy out 1, ...
class StagedPath final : public Path {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;  ///< its index
        int rank = 0;    ///< this one's in its process set
        const Results& results;
        HostMover& mover;
        /// Moves what is in pinned memory; the mover runs it.
        std::unique_ptr<engine::Backend> backend;
    };
    /// Throws what the driver throws.
    explicit StagedPath(Dependencies dependencies);

    bool supports(const engine::Bundle&) const noexcept override { return true; }
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override { deps_.mover.release(); }
    bool was_released() const noexcept override { return false; }
    void stop() noexcept override { deps_.mover.stop(); }

private:
    struct Transfer {
        std::span<std::byte> device, host;
    };
    struct Chunk {
        std::vector<Transfer> in, out;
        std::vector<device::Copy> pack, unpack;  ///< on the device, before and after
        HostMover::Chunk host;
    };

    std::vector<Chunk> chunks_of_bundle(const engine::Bundle& bundle);
    Chunk chunk_of(const engine::Bundle& bundle, std::span<const Fragment> fragments,
                   std::size_t slot) const;
    Chunk whole(const engine::Bundle& bundle);
    std::span<std::byte> memory_for_whole(std::size_t bytes);
    void copy(std::span<const Chunk> chunks, std::uint32_t first, device::Stream& stream);
    void copy_in(const Chunk& chunk, std::uint32_t number, device::Stream& stream);
    std::shared_ptr<device::Event> copy_out(const Chunk& chunk, std::uint32_t number);

    const Dependencies deps_;
    const std::shared_ptr<device::Stream> out_;
    const device::OwnedMemory slots_;
    const device::OwnedMemory packed_;  ///< as much on the device; none if it has no room
    /// For bundles that are one chunk however large they are; the last one is in use.
    std::vector<device::OwnedMemory> whole_;
};

}  // namespace guozhuang::backends
