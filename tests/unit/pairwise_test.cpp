#include "collectives/pairwise/all_to_all.hpp"

#include "support/cases/bundles.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

/// How many elements go from one rank to another: none here and there.
std::size_t split(int from, int to) {
    return static_cast<std::size_t>((from * 5 + to * 3) % 4) * 11;
}
std::int32_t value(int from, int to) {
    return from * 100 + to;
}

TEST_CASE("all-to-all with any splits", "[pairwise]") {
    for (const int ranks : group_sizes) {
        std::vector<BundleTensors<std::int32_t>> received(static_cast<std::size_t>(ranks));
        const auto wires = run_ranks(ranks, [&](ThreadWire& wire) {
            BundleTensors<std::int32_t> outgoing, incoming;
            std::vector<std::span<const std::byte>> out;
            for (int peer = 0; peer < ranks; ++peer) {
                outgoing.emplace_back(split(wire.rank(), peer), value(wire.rank(), peer));
                incoming.emplace_back(split(peer, wire.rank()), -1);
            }
            for (const auto& part : outgoing) out.push_back(std::as_bytes(std::span(part)));
            pairwise::all_to_all(wire, out, spans_of(incoming));
            received[static_cast<std::size_t>(wire.rank())] = incoming;
        });
        for (int rank = 0; rank < ranks; ++rank) {
            std::size_t bytes = 0;
            for (int peer = 0; peer < ranks; ++peer) {
                const auto& part =
                    received[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)];
                CHECK(part == std::vector<std::int32_t>(split(peer, rank), value(peer, rank)));
                if (peer != rank) bytes += split(rank, peer) * sizeof(std::int32_t);
            }
            CHECK(wires[static_cast<std::size_t>(rank)].bytes() == bytes);
        }
    }
}

}  // namespace
