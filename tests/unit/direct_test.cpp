#include <numeric>

#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("direct allreduce sums in tree order", "[direct]") {
    CHECK(failures_of<Plain<std::int64_t>>(direct_exchange<ThreadWire>,
                                           tree_sum<Plain<std::int64_t>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<Plain<float>>(direct_exchange<ThreadWire>, tree_sum<Plain<float>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<HalfLike>(direct_exchange<ThreadWire>, tree_sum<HalfLike>) ==
          std::vector<std::string>{});
}

TEST_CASE("direct allreduce sends what its cost says", "[direct]") {
    for (const int ranks : group_sizes) {
        auto inputs = inputs_of<Plain<float>>(ranks, {4099});
        const Blocks blocks(spans_of(inputs[0]), sizeof(float), ranks);
        const auto outcome =
            run_allreduce<Plain<float>>(direct_exchange<ThreadWire>, inputs, 1, 1 << 20);
        for (int rank = 0; rank < ranks; ++rank) {
            const auto& wire = outcome.wires[static_cast<std::size_t>(rank)];
            const auto peers = static_cast<std::size_t>(ranks - 1);
            CHECK(wire.messages() == 2 * peers);
            CHECK(wire.bytes() ==
                  blocks.total_bytes() - blocks.bytes(rank) + peers * blocks.bytes(rank));
        }
    }
}

/// Reduce-scatter of rows along dimension 0: the first `rows % ranks` ranks get one row more.
std::vector<std::vector<float>> scatter_rows(const std::vector<BundleTensors<float>>& inputs,
                                             std::size_t width, std::size_t segment_bytes) {
    const auto ranks = inputs.size();
    const auto rows = inputs[0][0].size() / width;
    std::vector<std::vector<float>> outputs(ranks);
    run_ranks(static_cast<int>(ranks), [&](ThreadWire& wire) {
        const auto self = static_cast<std::size_t>(wire.rank());
        std::vector<std::span<const std::byte>> blocks;
        for (std::size_t rank = 0, row = 0; rank < ranks; ++rank) {
            const auto count = rows / ranks + (rank < rows % ranks ? 1 : 0);
            blocks.push_back(
                std::as_bytes(std::span(inputs[self][0]).subspan(row * width, count * width)));
            row += count;
        }
        outputs[self].resize(blocks[self].size() / sizeof(float));
        TestScratch scratch(
            direct::reduce_scatter_scratch_bytes<ThreadWire>(blocks, segment_bytes));
        const ScalarReduce<Plain<float>> reduce(2);
        direct::reduce_scatter(wire, {blocks, std::as_writable_bytes(std::span(outputs[self])),
                                      scratch.span(), reduce, segment_bytes});
    });
    return outputs;
}

TEST_CASE("direct reduce-scatter of rows, uneven and empty blocks", "[direct]") {
    for (const int ranks : group_sizes) {
        const auto p = static_cast<std::size_t>(ranks);
        for (const std::size_t rows :
             {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, 7 * p + 3}) {
            const auto inputs = inputs_of<Plain<float>>(ranks, {rows * 13});
            const auto expected = tree_sum<Plain<float>>(inputs, 2)[0];
            for (const std::size_t segment_bytes : {64u, 100'000u}) {
                std::vector<float> joined;
                for (const auto& output : scatter_rows(inputs, 13, segment_bytes))
                    joined.insert(joined.end(), output.begin(), output.end());
                CHECK(joined == expected);
            }
        }
    }
}

}  // namespace
