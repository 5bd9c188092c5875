#include "backends/device/hierarchical_path.hpp"

#include <utility>
#include <vector>

#include "backends/device/chunks.hpp"
#include "backends/device/results.hpp"

namespace guozhuang::backends {

/// The ranks are those of this host.
struct HierarchicalPath::Allreduce : ArenaWorkInPlace {
    using ArenaWorkInPlace::ArenaWorkInPlace;
    void fill(std::size_t chunk, std::size_t half) const {
        tensors.put_prescaled(chunk, own(half));
    }
    /// As it is in the arena of a rank.
    std::span<std::byte> share(std::size_t chunk, int peer, std::size_t half) const {
        return block_of(halves.of(peer, half).first(tensors.bytes(chunk)), rank, ranks);
    }
    /// What there is of elements in the share.
    std::vector<Packing::Run> runs(std::size_t chunk) const {
        const auto own_share = share(chunk, rank, 0);
        const auto begin = static_cast<std::size_t>(own_share.data() - own(0).data());
        return runs_within(tensors.runs(chunk), begin, own_share.size());
    }
    /// In this rank's arena. The mover divides and scales the sum.
    void reduce_share(std::size_t chunk, std::size_t half) const {
        for (const auto& run : runs(chunk)) {
            const auto sum = run.in(share(chunk, rank, half));
            std::vector<std::span<const std::byte>> inputs;
            for (int peer = 0; peer < ranks; ++peer)
                inputs.push_back(run.in(share(chunk, peer, half)));
            reduce({.op = bundle.op, .dtype = run.dtype}, std::span(&sum, 1), inputs);
        }
    }
    /// From this rank's arena to the others'.
    void spread_share(std::size_t chunk, std::size_t half) const {
        const auto from = share(chunk, rank, half);
        Copies copies;
        for (int peer = 0; peer < ranks; ++peer)
            if (peer != rank) copies.push_back({share(chunk, peer, half), from});
        copy(copies);
    }
    void finish(std::size_t chunk, std::size_t half) const { tensors.get(chunk, own(half)); }
    /// The share as a bundle of host tensors.
    HostMover::Chunk on_the_host(std::size_t chunk, std::span<std::byte> memory) const {
        HostMover::Chunk moved{{}, {}, on_host(bundle)};
        moved.bundle.prescale = 1;
        for (const auto& run : runs(chunk))
            moved.tensors.emplace_back(
                run.in(memory).data(), run.dtype,
                Shape{static_cast<std::int64_t>(run.bytes / size_of(run.dtype))});
        for (const auto& tensor : moved.tensors) moved.bundle.entries.push_back({.tensor = tensor});
        return moved;
    }
};

HierarchicalPath::HierarchicalPath(Dependencies dependencies)
    : of_(std::move(dependencies)),
      halves_(of_.driver, of_.arenas),
      slots_(of_.driver, of_.device,
             2 * block_of(halves_.of(halves_.rank(), 0), 0, halves_.ranks()).size()) {}

bool HierarchicalPath::supports(const engine::Bundle& bundle) const noexcept {
    return bundle.operation == protocol::OperationKind::allreduce && bundle.op != ReduceOp::adasum;
}

void HierarchicalPath::release() noexcept {
    halves_.words().release(halves_.chunks());
    of_.mover.release();
}

std::span<std::byte> HierarchicalPath::slot(std::size_t half) const {
    const auto each = slots_.memory().size() / 2;
    return slots_.memory().subspan(half * each, each);
}

void HierarchicalPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle,
                               device::Stream& stream) {
    const Allreduce allreduce(halves_, bundle->bundle(), stream);
    HostMover::Load load{.bundle = bundle, .chunks = {}, .backend = *of_.across};
    for (std::size_t chunk = 0; chunk < allreduce.chunks(); ++chunk)
        load.chunks.push_back(allreduce.on_the_host(chunk, slot((halves_.chunks() + chunk) % 2)));
    const auto first = of_.mover.add(std::move(load));
    const auto moved_as = [&](std::size_t chunk) {
        return first + static_cast<std::uint32_t>(chunk);
    };
    halves_.enqueue(
        allreduce.chunks(),
        [&](std::size_t chunk, std::uint32_t number) {
            share_in(allreduce, chunk, number);
            of_.mover.announce(stream, moved_as(chunk));
        },
        [&](std::size_t chunk, std::uint32_t number) {
            of_.mover.wait_for(stream, moved_as(chunk));
            share_out(allreduce, chunk, number);
        });
}

void HierarchicalPath::share_in(const Allreduce& allreduce, std::size_t chunk,
                                std::uint32_t number) {
    const auto half = number % 2;
    allreduce.fill(chunk, half);
    halves_.words().announce(allreduce.stream, Phase::filled, number + 1);
    halves_.words().wait_for_all(allreduce.stream, Phase::filled, number + 1);
    allreduce.reduce_share(chunk, half);
    const auto share = allreduce.share(chunk, halves_.rank(), half);
    allreduce.copy({{slot(half).first(share.size()), share}});
}

void HierarchicalPath::share_out(const Allreduce& allreduce, std::size_t chunk,
                                 std::uint32_t number) {
    const auto half = number % 2;
    const auto share = allreduce.share(chunk, halves_.rank(), half);
    allreduce.copy({{share, slot(half).first(share.size())}});
    allreduce.spread_share(chunk, half);
    halves_.words().announce(allreduce.stream, Phase::taken, number + 1);
    halves_.words().wait_for_all(allreduce.stream, Phase::taken, number + 1);
    allreduce.finish(chunk, half);
}

}  // namespace guozhuang::backends
