#include "collectives/recursive/doubling_allreduce.hpp"

#include <bit>

#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

// By hand. on_each_rank() runs its body on a thread per rank: `own` is that rank's row in memory,
// in place.

TEST_CASE("three ranks recursive doubling: every rank adds up the whole bundle", "[recursive]") {
    ByRank<int> tensors = {{{1, 2}, {5}},         // rank 0
                           {{10, 20}, {50}},      // rank 1
                           {{100, 200}, {500}}};  // rank 2
    const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        const Blocks bundle(own, sizeof(int), 1);  // one block: all of it
        const Sum<int> sum;
        TestScratch scratch(recursive::doubling_scratch_bytes<ThreadWire>(bundle, sum, 3));
        recursive::doubling_allreduce(wire, {bundle, scratch.span(), sum});
    });
    const BundleTensors<int> sums = {{111, 222}, {555}};
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    CHECK(wires[0].messages() == 2);  // 1 to rank 1, then 1 + 10 to rank 2
    CHECK(wires[1].messages() == 1);  // 10 to rank 0
    CHECK(wires[2].messages() == 2);  // 100 to rank 0 and to rank 1
    CHECK(wires[2].bytes() == 2 * 3 * sizeof(int));
}

TEST_CASE("recursive doubling order: every sum is that of the tree over the ranks", "[recursive]") {
    constexpr float big = 1e8f;  // so big that big + 1 is big
    ByRank<float> tensors = {{{big, big, big}}, {{1, 1, 1}}, {{-big, -big, -big}}};
    on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        recursive_doubling(wire, own, Sum<float>(), 0);
    });
    const BundleTensors<float> in_tree_order = {{0, 0, 0}};  // (big + 1) - big; a ring has 0, 1, 0
    CHECK(tensors == ByRank<float>{in_tree_order, in_tree_order, in_tree_order});
}

TEST_CASE("of five ranks the last meets nobody until the end, then serves all", "[recursive]") {
    CHECK_FALSE(recursive::exchange_of(4, 1, 5).has_partner);
    CHECK_FALSE(recursive::exchange_of(4, 2, 5).has_partner);
    const auto last = recursive::exchange_of(4, 4, 5);
    CHECK(last.has_partner);
    CHECK_FALSE(last.left);  // 0+1+2+3 is the left operand
    CHECK(last.source == 0);
    CHECK(last.first_served == 0);
    CHECK(last.stride == 1);
    CHECK(last.end_served == 4);  // ranks 0, 1, 2 and 3
}

// Sweep: 1 to 17 ranks, bundles of no to 4099 random numbers. Every rank's result is compared bit
// for bit with tree_sum(), one loop that adds up in tree order.
TEST_CASE("recursive doubling sums in tree order for any number of ranks", "[recursive]") {
    CHECK(mismatches_over_sizes<I64>(recursive_doubling<ThreadWire>, tree_sum<I64>) == none);
    CHECK(mismatches_over_sizes<F32>(recursive_doubling<ThreadWire>, tree_sum<F32>) == none);
    CHECK(mismatches_over_sizes<HalfLike>(recursive_doubling<ThreadWire>, tree_sum<HalfLike>) ==
          none);
}

// For 1 to 70 ranks and every step: who sends to a rank, counted over all senders, is whom that
// rank receives from, and nobody is sent to twice.
TEST_CASE("whoever receives is served, by everyone's count", "[recursive]") {
    for (int size = 1; size <= 70; ++size) {
        for (int distance = 1; distance < size; distance *= 2) {
            std::vector<int> served(static_cast<std::size_t>(size), -1);
            for (int rank = 0; rank < size; ++rank) {
                const auto m = recursive::exchange_of(rank, distance, size);
                for (int peer = m.first_served; m.has_partner && peer < m.end_served;
                     peer += m.stride) {
                    REQUIRE(served[static_cast<std::size_t>(peer)] == -1);
                    served[static_cast<std::size_t>(peer)] = rank;
                }
            }
            for (int rank = 0; rank < size; ++rank) {
                const auto m = recursive::exchange_of(rank, distance, size);
                REQUIRE(served[static_cast<std::size_t>(rank)] == (m.has_partner ? m.source : -1));
            }
        }
    }
}

/// The wires, after a sum of 100 half-like elements, which are sent as 100 floats.
std::vector<ThreadWire> add_100_halves(int ranks) {
    auto tensors = inputs_of<HalfLike>(ranks, {100});
    return on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        recursive_doubling(wire, own, ScalarReduce<HalfLike>(), 0);
    });
}

TEST_CASE("recursive doubling sends what its cost says", "[recursive]") {
    for (const int ranks : {2, 4, 8, 16}) {
        const auto steps =
            static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks)) - 1);
        for (const auto& wire : add_100_halves(ranks)) {
            CHECK(wire.messages() == steps);
            CHECK(wire.bytes() == steps * 100 * sizeof(float));
        }
    }
    // Five ranks: the last one meets nobody until the end, then serves the four others.
    const auto wires = add_100_halves(5);
    CHECK(wires[0].messages() == 3);
    CHECK(wires[1].messages() == 2);
    CHECK(wires[4].messages() == 4);
}

}  // namespace
