#include <bit>

#include "collectives/tree/tree_broadcast.hpp"
#include "support/cases/bundles.hpp"
#include "support/oracles/scalar_reduce.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

/// Runs the broadcast on a thread per rank, of each rank's row, in place.
template <class Element>
std::vector<ThreadWire> broadcast_all(ByRank<Element>& tensors, int root, std::size_t segment_bytes,
                                      std::size_t window_bytes = 0) {
    return on_each_rank(tensors, [&](ThreadWire& wire, TensorSpans own) {
        wire.set_window_bytes(window_bytes);
        const Blocks bundle(own, sizeof(Element), 1);  // one block: all of it
        TestScratch scratch(tree::broadcast_scratch_bytes(wire, bundle, segment_bytes));
        tree::broadcast(wire, {bundle, scratch.span(), segment_bytes, root});
    });
}

TEST_CASE("three ranks by hand: all end with what the root has", "[tree]") {
    ByRank<int> tensors = {{{1, 2}, {3}},         // rank 0
                           {{10, 20}, {30}},      // rank 1, the root
                           {{100, 200}, {300}}};  // rank 2
    const auto wires = broadcast_all(tensors, 1, 64);
    const BundleTensors<int> of_root = {{10, 20}, {30}};
    CHECK(tensors == ByRank<int>{of_root, of_root, of_root});
    CHECK(wires[0].messages() == 0);  // a leaf of the tree
    CHECK(wires[1].messages() == 2);  // to rank 0, then to rank 2
    CHECK(wires[1].bytes() == 2 * 3 * sizeof(int));
}

// 1 to 17 ranks, bundles of no to 4099 numbers, short and long segments.
TEST_CASE("broadcast from every root, any bundle, any segments", "[tree]") {
    for (const int ranks : group_sizes) {
        for (const int root : {0, 1, ranks / 2, ranks - 1}) {
            for (const auto& counts : bundles_for(ranks)) {
                const auto inputs = inputs_of<I64>(ranks, counts);
                for (const auto& [segment_bytes, window_bytes] :
                     {std::pair<std::size_t, std::size_t>{1000, 0}, {1000, 7000}, {1 << 20, 0}}) {
                    auto tensors = inputs;
                    broadcast_all(tensors, root % ranks, segment_bytes, window_bytes);
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
        auto tensors = inputs_of<I64>(ranks, {512});  // four segments
        const auto wires = broadcast_all(tensors, ranks - 1, 1024);
        std::size_t total = 0;
        for (const auto& wire : wires) total += wire.messages();
        CHECK(total == 4 * static_cast<std::size_t>(ranks - 1));
        CHECK(wires.back().messages() ==
              4 * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks - 1))));
    }
}

}  // namespace
