#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backends/device/path.hpp"
#include "backends/device/peer_arenas.hpp"
#include "backends/device/results.hpp"
#include "backends/rows.hpp"
#include "collectives/concepts/arena_site.hpp"
#include "collectives/layout/fragments.hpp"
#include "device/device.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// The ArenaSite of one bundle, on a stream. A reduction without elements enqueues nothing.
class StreamArenaSite {
public:
    using Copies = std::vector<device::Copy>;

    struct Dependencies {
        device::Driver& driver;
        PeerArenas& arenas;  ///< share() has succeeded
        const Results& results;
        std::atomic<std::uint32_t>& chunks;  ///< the next chunk's number
    };
    StreamArenaSite(const Dependencies& dependencies, const engine::Bundle& bundle,
                    device::Stream& stream)
        : deps_(dependencies), bundle_(bundle), stream_(stream) {}

    int rank() const noexcept { return deps_.arenas.rank(); }
    int ranks() const noexcept { return deps_.arenas.ranks(); }
    int root() const noexcept { return bundle_.root; }
    std::size_t tensors() const noexcept { return bundle_.entries.size(); }
    SiteTensor tensor(std::size_t i) const { return site_tensor(bundle_.entries[i]); }
    std::vector<std::vector<std::int64_t>> rows() const { return deps_.results.rows_of(bundle_); }
    std::span<std::byte> result(std::size_t i, std::span<const std::int64_t> rows) const {
        return deps_.results.memory_for(bundle_.entries[i], rows);
    }
    std::vector<std::int64_t> gather(std::vector<std::int64_t> own) const {
        return deps_.results.gather(bundle_, std::move(own));
    }

    /// Whole cache lines.
    std::size_t half_bytes() const {
        return deps_.arenas.of(rank()).size() / 2 / line_bytes * line_bytes;
    }
    std::span<std::byte> half(int rank, std::size_t half) const {
        return deps_.arenas.of(rank).subspan(half * half_bytes(), half_bytes());
    }
    std::uint32_t take_numbers(std::size_t chunks) const {
        return deps_.chunks.fetch_add(static_cast<std::uint32_t>(chunks));
    }

    void copy(const Copies& copies) const { deps_.driver.copy_all(stream_, copies, {}); }
    void copy_prescaled(const Copies& copies) const {
        deps_.driver.copy_all(stream_, copies, {.scale = bundle_.description->prescale});
    }
    void reduce(DType dtype, std::span<const std::span<std::byte>> outputs,
                const std::vector<std::span<const std::byte>>& inputs) const {
        enqueue(reduction_of(bundle_, dtype), outputs, inputs);
    }
    void add(DType dtype, std::span<const std::span<std::byte>> outputs,
             const std::vector<std::span<const std::byte>>& inputs) const {
        enqueue({.op = bundle_.description->op, .dtype = dtype}, outputs, inputs);
    }

    void announce_to(int peer, const Moment& moment) const {
        deps_.arenas.words().announce_to(peer, stream_, moment);
    }
    void wait_for(int peer, const Moment& moment) const {
        deps_.arenas.words().wait_for(peer, stream_, moment);
    }
    void meet(std::optional<Moment> own, std::optional<Moment> others) const {
        deps_.arenas.words().meet(stream_, own, others);
    }

private:
    void enqueue(const device::Reduction& reduction, std::span<const std::span<std::byte>> outputs,
                 const std::vector<std::span<const std::byte>>& inputs) const {
        if (!outputs.front().empty()) deps_.driver.reduce(stream_, reduction, outputs, inputs);
    }

    const Dependencies deps_;
    const engine::Bundle& bundle_;
    device::Stream& stream_;
};
static_assert(ArenaSite<StreamArenaSite>);

}  // namespace guozhuang::backends
