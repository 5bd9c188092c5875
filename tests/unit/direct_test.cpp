#include "collectives/direct/direct_allreduce.hpp"
#include "collectives/direct/direct_reduce_scatter.hpp"
#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

// By hand, on three ranks. on_each_rank() runs its body on a thread per rank: `own` is the memory
// of that rank's row, in place.

TEST_CASE("three ranks direct allreduce of a bundle: two tensors at once", "[direct]") {
    ByRank<int> tensors = {{{1, 2, 3, 4}, {5}},             // rank 0
                           {{10, 20, 30, 40}, {50}},        // rank 1
                           {{100, 200, 300, 400}, {500}}};  // rank 2
    const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        const Blocks blocks(own, sizeof(int), 3);  // on rank 0 {1, 2, 5}, {3} and {4}
        const std::size_t segment_bytes = 64;      // so each block is one segment
        TestScratch scratch(direct::allreduce_scratch_bytes(wire, blocks, segment_bytes));
        direct::allreduce(wire, {blocks, scratch.span(), Sum<int>(), segment_bytes});
    });
    const BundleTensors<int> sums = {{111, 222, 333, 444}, {555}};
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    CHECK(wires[0].messages() == 4);             // one to each other rank, twice
    CHECK(wires[0].bytes() == 8 * sizeof(int));  // blocks 1 and 2, then block 0 to both
}

TEST_CASE("direct order: every sum is that of the tree over the ranks", "[direct]") {
    constexpr float big = 1e8f;  // so big that big + 1 is big
    ByRank<float> tensors = {{{big, big, big}}, {{1, 1, 1}}, {{-big, -big, -big}}};
    on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        direct_exchange(wire, own, Sum<float>(), 64);
    });
    const BundleTensors<float> in_tree_order = {{0, 0, 0}};  // (big + 1) - big; a ring has 0, 1, 0
    CHECK(tensors == ByRank<float>{in_tree_order, in_tree_order, in_tree_order});
}

TEST_CASE("three ranks direct reduce-scatter: the input stays as it is", "[direct]") {
    const ByRank<int> inputs = {{{1, 2}, {3}, {}},         // rank 0: its blocks 0, 1 and 2
                                {{10, 20}, {30}, {}},      // rank 1
                                {{100, 200}, {300}, {}}};  // rank 2
    auto blocks = inputs;
    std::vector<int> sums[3] = {{-1, -1}, {-1}, {}};
    on_each_rank(blocks, [&](ThreadWire& wire, TensorSpans own) {
        const std::vector<std::span<const std::byte>> input(own.begin(), own.end());
        TestScratch scratch(direct::reduce_scatter_scratch_bytes(wire, input, 64));
        direct::reduce_scatter(wire,
                               {.input = input,
                                .output = std::as_writable_bytes(std::span(sums[wire.rank()])),
                                .scratch = scratch.span(),
                                .reduce = Sum<int>(),
                                .segment_bytes = 64});
    });
    CHECK(sums[0] == std::vector{111, 222});
    CHECK(sums[1] == std::vector{333});
    CHECK(blocks == inputs);
}

// Sweep: 1 to 17 ranks, bundles of no to 4099 random numbers, segments of 64 bytes to 1 MiB. Every
// rank's result is compared bit for bit with tree_sum(), one loop that adds up in tree order.
TEST_CASE("direct allreduce sums in tree order", "[direct]") {
    CHECK(mismatches_over_sizes<I64>(direct_exchange<ThreadWire>, tree_sum<I64>) == none);
    CHECK(mismatches_over_sizes<F32>(direct_exchange<ThreadWire>, tree_sum<F32>) == none);
    CHECK(mismatches_over_sizes<HalfLike>(direct_exchange<ThreadWire>, tree_sum<HalfLike>) == none);
}

TEST_CASE("direct allreduce sends what its cost says", "[direct]") {
    for (const int ranks : group_sizes) {
        auto tensors = inputs_of<F32>(ranks, {4099});
        const Blocks blocks(spans_of(tensors[0]), sizeof(float), ranks);
        const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
            direct_exchange(wire, own, Sum<float>(), 1 << 20);
        });
        for (int rank = 0; rank < ranks; ++rank) {
            const auto& wire = wires[static_cast<std::size_t>(rank)];
            const auto peers = static_cast<std::size_t>(ranks - 1);
            CHECK(wire.messages() == 2 * peers);
            CHECK(wire.bytes() ==
                  blocks.total_bytes() - blocks.bytes(rank) + peers * blocks.bytes(rank));
        }
    }
}

/// Reduce-scatter of rows along dimension 0, halving the sums: the first `rows % ranks` ranks get
/// one row more.
std::vector<std::vector<float>> scatter_rows(const ByRank<float>& inputs, std::size_t width,
                                             std::size_t segment_bytes, std::size_t window_bytes) {
    const auto ranks = inputs.size();
    const auto rows = inputs[0][0].size() / width;
    std::vector<std::vector<float>> outputs(ranks);
    run_ranks(static_cast<int>(ranks), [&](ThreadWire& wire) {
        wire.set_window_bytes(window_bytes);
        const auto self = static_cast<std::size_t>(wire.rank());
        std::vector<std::span<const std::byte>> blocks;
        for (std::size_t rank = 0, row = 0; rank < ranks; ++rank) {
            const auto count = rows / ranks + (rank < rows % ranks ? 1 : 0);
            blocks.push_back(
                std::as_bytes(std::span(inputs[self][0]).subspan(row * width, count * width)));
            row += count;
        }
        outputs[self].resize(blocks[self].size() / sizeof(float));
        TestScratch scratch(direct::reduce_scatter_scratch_bytes(wire, blocks, segment_bytes));
        const Sum<float> half_of_sum(2);
        direct::reduce_scatter(wire, {blocks, std::as_writable_bytes(std::span(outputs[self])),
                                      scratch.span(), half_of_sum, segment_bytes});
    });
    return outputs;
}

// The ranks' rows, one after the other, are compared bit for bit with tree_sum() of the whole.
TEST_CASE("direct reduce-scatter of rows, uneven and empty blocks", "[direct]") {
    for (const int ranks : group_sizes) {
        const auto p = static_cast<std::size_t>(ranks);
        for (const std::size_t rows :
             {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, 7 * p + 3}) {
            const auto inputs = inputs_of<F32>(ranks, {rows * 13});
            const auto expected = tree_sum<F32>(inputs, 2)[0];
            for (const auto& [segment_bytes, window_bytes] :
                 {std::pair<std::size_t, std::size_t>{64, 0}, {64, 2000}, {100'000, 0}}) {
                std::vector<float> joined;
                for (const auto& output : scatter_rows(inputs, 13, segment_bytes, window_bytes))
                    joined.insert(joined.end(), output.begin(), output.end());
                CHECK(joined == expected);
            }
        }
    }
}

TEST_CASE("the scratch of direct algorithms is that of the window, on many ranks too", "[direct]") {
    constexpr std::size_t window_bytes = std::size_t{16} << 20;
    const std::vector<std::byte> memory(window_bytes);
    const std::vector<std::span<const std::byte>> blocks(64, memory);
    Switchboard board(64);
    ThreadWire wire(board, 0);
    wire.set_window_bytes(window_bytes);
    const auto bytes = direct::reduce_scatter_scratch_bytes(wire, blocks, 8192);
    CHECK(bytes > window_bytes / 2);
    CHECK(bytes < 2 * window_bytes);
}

}  // namespace
