#include <cmath>
#include <numeric>

#include "collectives/ring/pipelined_allreduce.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/ring/ring_allreduce.hpp"
#include "collectives/ring/ring_reduce_scatter.hpp"
#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

// By hand, on three ranks. on_each_rank() runs its body on a thread per rank: `own` is the memory
// of that rank's row, in place.

TEST_CASE("three ranks reduce-scatter: rank b ends with the sum of block b", "[ring]") {
    ByRank<int> blocks = {{{1}, {2}, {3}},         // rank 0: its blocks 0, 1 and 2
                          {{10}, {20}, {30}},      // rank 1
                          {{100}, {200}, {300}}};  // rank 2
    const auto wires = on_each_rank(blocks, [](ThreadWire& wire, TensorSpans own) {
        TestScratch inbox(sizeof(int));  // room for the largest block
        ring::reduce_scatter(wire, own, inbox.span(), Sum<int>());
    });
    // Block 0 went from rank 1 to rank 2 to rank 0; where it passed, its sum so far is left.
    CHECK(blocks == ByRank<int>{{{111}, {202}, {3}},      // block 1 is 2 + 200 here
                                {{10}, {222}, {33}},      // block 2 is 3 + 30
                                {{110}, {200}, {333}}});  // block 0 is 10 + 100
    CHECK(wires[0].messages() == 2);
    CHECK(wires[0].bytes() == 2 * sizeof(int));
}

TEST_CASE("three ranks all-gather: each begins with its own block and ends with all", "[ring]") {
    ByRank<int> blocks = {{{111, 112}, {-1}, {}},  // rank 0 has block 0
                          {{-1, -1}, {222}, {}},   // rank 1 has block 1
                          {{-1, -1}, {-1}, {}}};   // rank 2 has block 2, which is empty
    on_each_rank(blocks, [](ThreadWire& wire, TensorSpans own) { ring::all_gather(wire, own); });
    const BundleTensors<int> all = {{111, 112}, {222}, {}};
    CHECK(blocks == ByRank<int>{all, all, all});
}

TEST_CASE("three ranks allreduce: reduce-scatter, then all-gather", "[ring]") {
    ByRank<int> blocks = {{{1, 2}, {}, {3}}, {{10, 20}, {}, {30}}, {{100, 200}, {}, {300}}};
    const Sum<int> average(3);  // adds up, then divides by 3
    on_each_rank(blocks, [&](ThreadWire& wire, TensorSpans own) {
        TestScratch inbox(2 * sizeof(int));
        ring::allreduce(wire, own, inbox.span(), average);
    });
    const BundleTensors<int> means = {{37, 74}, {}, {111}};  // (1 + 10 + 100) / 3 and so on
    CHECK(blocks == ByRank<int>{means, means, means});
}

TEST_CASE("three ranks pipelined allreduce of a bundle: two tensors at once", "[ring]") {
    ByRank<int> tensors = {{{1, 2, 3, 4}, {5}},             // rank 0
                           {{10, 20, 30, 40}, {50}},        // rank 1
                           {{100, 200, 300, 400}, {500}}};  // rank 2
    const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        const Blocks blocks(own, sizeof(int), 3);  // on rank 0 {1, 2, 5}, {3} and {4}
        const std::size_t segment_bytes = 64;      // so each block is one segment
        TestScratch scratch(ring::pipelined_scratch_bytes(wire, blocks, segment_bytes));
        ring::pipelined_allreduce(wire, {blocks, scratch.span(), Sum<int>(), segment_bytes});
    });
    const BundleTensors<int> sums = {{111, 222, 333, 444}, {555}};
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    CHECK(wires[0].messages() == 4);             // two to reduce-scatter, two to all-gather
    CHECK(wires[0].bytes() == 6 * sizeof(int));  // blocks 2 and 1, then 0 and 2
}

TEST_CASE("ring order: block b is added up from rank b+1 round to rank b", "[ring]") {
    constexpr float big = 1e8f;  // so big that big + 1 is big
    const ByRank<float> inputs = {{{big, big, big}}, {{1, 1, 1}}, {{-big, -big, -big}}};
    // Block 0 is (1 - big) + big, block 1 is (-big + big) + 1, block 2 is (big + 1) - big.
    const BundleTensors<float> in_ring_order = {{0, 1, 0}}, in_tree_order = {{0, 0, 0}};
    for (const auto allreduce : {plain_ring<ThreadWire>, pipelined_ring<ThreadWire>}) {
        auto tensors = inputs;
        on_each_rank(tensors, [&](ThreadWire& wire, TensorSpans own) {
            allreduce(wire, own, Sum<float>(), 64);
        });
        CHECK(tensors == ByRank<float>{in_ring_order, in_ring_order, in_ring_order});
    }
    // So do the serial references that the sweeps below compare with.
    CHECK(ring_sum<F32>(inputs, 1) == in_ring_order);
    CHECK(tree_sum<F32>(inputs, 1) == in_tree_order);
}

// Sweeps: 1 to 17 ranks, bundles of no to 4099 random numbers, segments of 64 bytes to 1 MiB. Every
// rank's result is compared bit for bit with ring_sum(), one loop that adds up in the ring's order.

TEST_CASE("plain ring allreduce", "[ring]") {
    CHECK(mismatches_over_sizes<I64>(plain_ring<ThreadWire>, ring_sum<I64>) == none);
    CHECK(mismatches_over_sizes<F32>(plain_ring<ThreadWire>, ring_sum<F32>) == none);
}

TEST_CASE(
    "pipelined ring allreduce is the plain one bit for bit, fused or not, whatever the segments",
    "[ring]") {
    CHECK(mismatches_over_sizes<I64>(pipelined_ring<ThreadWire>, ring_sum<I64>) == none);
    CHECK(mismatches_over_sizes<F32>(pipelined_ring<ThreadWire>, ring_sum<F32>) == none);
    CHECK(mismatches_over_sizes<HalfLike>(pipelined_ring<ThreadWire>, ring_sum<HalfLike>) == none);
}

TEST_CASE("ring allreduce sends what its cost says", "[ring]") {
    for (const int ranks : group_sizes) {
        auto tensors = inputs_of<F32>(ranks, {4099});
        const Blocks blocks(spans_of(tensors[0]), sizeof(float), ranks);
        const Chunks chunks(blocks.largest_bytes(), 256);
        const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
            pipelined_ring(wire, own, Sum<float>(), 256);
        });
        for (int rank = 0; rank < ranks && ranks > 1; ++rank) {
            const auto& wire = wires[static_cast<std::size_t>(rank)];
            CHECK(wire.bytes() ==
                  2 * blocks.total_bytes() - blocks.bytes(rank) - blocks.bytes((rank + 1) % ranks));
            CHECK(wire.messages() <= 2 * static_cast<std::size_t>(ranks - 1) * chunks.count());
            CHECK(wire.messages() >=
                  2 * static_cast<std::size_t>(ranks - 1) * (chunks.count() - 1));
        }
    }
}

// Block b has 7 b + 1 elements, every third block none. To gather, rank b brings b in block b; to
// reduce, rank r brings r + b.
TEST_CASE("ring all-gather and reduce-scatter take uneven and empty blocks", "[ring]") {
    for (const int ranks : group_sizes) {
        const auto size_of_block = [](int block) {
            return block % 3 == 1 ? std::size_t{0} : static_cast<std::size_t>(block) * 7 + 1;
        };
        ByRank<std::int32_t> gathered(static_cast<std::size_t>(ranks)), sums = gathered;
        BundleTensors<std::int32_t> expected;
        for (int block = 0; block < ranks; ++block) {
            expected.emplace_back(size_of_block(block), block);
            for (int rank = 0; rank < ranks; ++rank) {
                const auto r = static_cast<std::size_t>(rank);
                gathered[r].emplace_back(size_of_block(block), rank == block ? block : -1);
                sums[r].emplace_back(size_of_block(block), rank + block);
            }
        }
        on_each_rank(gathered,
                     [](ThreadWire& wire, TensorSpans own) { ring::all_gather(wire, own); });
        on_each_rank(sums, [](ThreadWire& wire, TensorSpans own) {
            TestScratch inbox(4096);
            ring::reduce_scatter(wire, own, inbox.span(), Sum<std::int32_t>());
        });
        for (int rank = 0; rank < ranks; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            CHECK(gathered[r] == expected);
            CHECK(sums[r][r] == std::vector<std::int32_t>(size_of_block(rank),
                                                          ranks * (ranks - 1) / 2 + ranks * rank));
        }
    }
}

TEST_CASE("too little scratch is an error, not an overrun", "[ring]") {
    std::vector<float> data(1000);
    const std::span<std::byte> tensors[] = {std::as_writable_bytes(std::span(data))};
    const Blocks blocks(tensors, sizeof(float), 2);
    Switchboard board(2);
    ThreadWire wire(board, 0);
    TestScratch scratch(ring::pipelined_scratch_bytes(wire, blocks, 512) - 64);
    CHECK_THROWS_AS(ring::pipelined_allreduce(wire, {blocks, scratch.span(), Sum<float>(), 512}),
                    Error);
}

// The references of the sweeps, against sums in f64: they differ at most by what rounding explains.
TEST_CASE("the references themselves are right", "[ring]") {
    for (const int ranks : group_sizes) {
        const auto inputs = inputs_of<F32>(ranks, {501});
        const auto tree = tree_sum<F32>(inputs, 1), ring = ring_sum<F32>(inputs, 1);
        for (std::size_t i = 0; i < 501; ++i) {
            double exact = 0, magnitude = 0;
            for (const auto& input : inputs) {
                exact += static_cast<double>(input[0][i]);
                magnitude += std::abs(static_cast<double>(input[0][i]));
            }
            const auto bound = ranks * 1.2e-7 * magnitude;
            REQUIRE(std::abs(static_cast<double>(tree[0][i]) - exact) <= bound);
            REQUIRE(std::abs(static_cast<double>(ring[0][i]) - exact) <= bound);
        }
        const auto whole = inputs_of<I64>(ranks, {77});
        CHECK(tree_sum<I64>(whole, 3) == ring_sum<I64>(whole, 3));
    }
}

TEST_CASE("tree and ring order can be told apart by the numbers of the sweeps", "[ring]") {
    const auto inputs = inputs_of<F32>(5, {501});
    CHECK(tree_sum<F32>(inputs, 1) != ring_sum<F32>(inputs, 1));
    const auto halves = inputs_of<HalfLike>(5, {501});
    CHECK(tree_sum<HalfLike>(halves, 1) != ring_sum<HalfLike>(halves, 1));
}

}  // namespace
