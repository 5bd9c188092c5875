#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "backends/device/bundle_work.hpp"
#include "backends/device/chunks.hpp"
#include "backends/device/packing.hpp"
#include "backends/device/peer_arenas.hpp"
#include "backends/device/results.hpp"

namespace guozhuang::backends {

/// The arenas of the ranks, through which chunks of bundles go: one chunk is in one half of each
/// arena while the next one is put into the other.
class ArenaHalves {
public:
    /// The arenas are shared.
    ArenaHalves(std::shared_ptr<device::Driver> driver, std::shared_ptr<PeerArenas> arenas)
        : driver_(std::move(driver)), arenas_(std::move(arenas)) {}

    device::Driver& driver() const noexcept { return *driver_; }
    int rank() const noexcept { return arenas_->rank(); }
    int ranks() const noexcept { return arenas_->ranks(); }
    PeerWords& words() const noexcept { return arenas_->words(); }
    /// Size of a half in bytes: whole cache lines.
    std::size_t bytes() const { return arenas_->of(rank()).size() / 2 / line_bytes * line_bytes; }
    std::span<std::byte> of(int rank, std::size_t half) const {
        return arenas_->of(rank).subspan(half * bytes(), bytes());
    }
    /// How many chunks have been enqueued. Any thread.
    std::uint32_t chunks() const noexcept { return chunks_; }

    /// Enqueues this many chunks: fill 0, fill 1, move 0, fill 2, move 1, ... Either is called with
    /// the chunk's index in its bundle, and its number among all, which is in half number % 2.
    template <class Fill, class Move>
    void enqueue(std::size_t chunks, const Fill& fill, const Move& move) {
        const auto first = chunks_.fetch_add(static_cast<std::uint32_t>(chunks));
        const auto number_of = [&](std::size_t chunk) {
            return first + static_cast<std::uint32_t>(chunk);
        };
        if (chunks > 0) fill(std::size_t{0}, number_of(0));
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
            if (chunk + 1 < chunks) fill(chunk + 1, number_of(chunk + 1));
            move(chunk, number_of(chunk));
        }
    }

private:
    const std::shared_ptr<device::Driver> driver_;
    const std::shared_ptr<PeerArenas> arenas_;
    std::atomic<std::uint32_t> chunks_{0};
};

/// Enqueues the work of a bundle that goes through the arenas.
struct ArenaWork : BundleWork {
    ArenaWork(const ArenaHalves& through, const engine::Bundle& given, device::Stream& on)
        : BundleWork{through.driver(), given, on},
          halves(through),
          rank(through.rank()),
          ranks(through.ranks()) {}
    std::span<std::byte> own(std::size_t half) const { return halves.of(rank, half); }

    const ArenaHalves& halves;
    const int rank, ranks;
};

/// For a bundle of tensors in place.
struct ArenaWorkInPlace : ArenaWork {
    ArenaWorkInPlace(const ArenaHalves& through, const Results&, const engine::Bundle& given,
                     device::Stream& on)
        : ArenaWork(through, given, on), tensors(*this, through.bytes()) {}
    std::size_t chunks() const noexcept { return tensors.chunks(); }

    const PackedTensors tensors;
};

}  // namespace guozhuang::backends
