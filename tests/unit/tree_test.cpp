#include <atomic>
#include <bit>

#include "collectives/tree/barrier.hpp"
#include "collectives/tree/broadcast.hpp"
#include "support/cases/bundles.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

std::vector<ThreadWire> broadcast_all(std::vector<BundleTensors<std::int64_t>>& tensors, int root,
                                      std::size_t segment_bytes) {
    return run_ranks(static_cast<int>(tensors.size()), [&](ThreadWire& wire) {
        const Blocks blocks(spans_of(tensors[static_cast<std::size_t>(wire.rank())]),
                            sizeof(std::int64_t), 1);
        TestScratch scratch(tree::broadcast_scratch_bytes(blocks, segment_bytes));
        tree::broadcast(wire, {blocks, scratch.span(), segment_bytes, root});
    });
}

TEST_CASE("broadcast from every root, any bundle, any segments", "[tree]") {
    for (const int ranks : group_sizes) {
        for (const int root : {0, 1, ranks / 2, ranks - 1}) {
            for (const auto& counts : bundles_for(ranks)) {
                const auto inputs = inputs_of<Plain<std::int64_t>>(ranks, counts);
                for (const std::size_t segment_bytes : {1000u, 1u << 20}) {
                    auto tensors = inputs;
                    broadcast_all(tensors, root % ranks, segment_bytes);
                    const auto& expected = inputs[static_cast<std::size_t>(root % ranks)];
                    REQUIRE(std::all_of(tensors.begin(), tensors.end(),
                                        [&](const auto& got) { return got == expected; }));
                }
            }
        }
    }
}

TEST_CASE("broadcast sends what its cost says", "[tree]") {
    for (const int ranks : group_sizes) {
        auto tensors = inputs_of<Plain<std::int64_t>>(ranks, {512});  // four segments
        const auto wires = broadcast_all(tensors, ranks - 1, 1024);
        std::size_t total = 0;
        for (const auto& wire : wires) total += wire.messages();
        CHECK(total == 4 * static_cast<std::size_t>(ranks - 1));
        CHECK(wires.back().messages() ==
              4 * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks - 1))));
    }
}

TEST_CASE("nobody leaves the barrier before all have come", "[tree]") {
    for (const int ranks : group_sizes) {
        std::atomic<int> come{0}, early{0};
        const auto wires = run_ranks(ranks, [&](ThreadWire& wire) {
            TestScratch scratch(tree::barrier_scratch_bytes);
            for (int round = 1; round <= 5; ++round) {
                ++come;
                tree::barrier(wire, scratch.span());
                if (come < round * ranks) ++early;
                tree::barrier(wire, scratch.span());
            }
        });
        CHECK(early == 0);
        for (const auto& wire : wires)
            CHECK(wire.messages() ==
                  10 * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks - 1))));
    }
}

}  // namespace
