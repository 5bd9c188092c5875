#include <numeric>

#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("the references themselves are right", "[ring]") {
    for (const int ranks : group_sizes) {
        const auto inputs = inputs_of<Plain<float>>(ranks, {501});
        const auto tree = tree_sum<Plain<float>>(inputs, 1),
                   ring = ring_sum<Plain<float>>(inputs, 1);
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
        const auto whole = inputs_of<Plain<std::int64_t>>(ranks, {77});
        CHECK(tree_sum<Plain<std::int64_t>>(whole, 3) == ring_sum<Plain<std::int64_t>>(whole, 3));
    }
}

TEST_CASE("tree and ring order can be told apart", "[ring]") {
    const auto inputs = inputs_of<Plain<float>>(5, {501});
    CHECK(tree_sum<Plain<float>>(inputs, 1) != ring_sum<Plain<float>>(inputs, 1));
    const auto halves = inputs_of<HalfLike>(5, {501});
    CHECK(tree_sum<HalfLike>(halves, 1) != ring_sum<HalfLike>(halves, 1));
}

TEST_CASE("plain ring allreduce", "[ring]") {
    CHECK(failures_of<Plain<std::int64_t>>(plain_ring<ThreadWire>, ring_sum<Plain<std::int64_t>>)
              .empty());
    CHECK(failures_of<Plain<float>>(plain_ring<ThreadWire>, ring_sum<Plain<float>>).empty());
}

TEST_CASE(
    "pipelined ring allreduce is the plain one bit for bit, fused or not, whatever the segments",
    "[ring]") {
    CHECK(failures_of<Plain<std::int64_t>>(pipelined_ring<ThreadWire>,
                                           ring_sum<Plain<std::int64_t>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<Plain<float>>(pipelined_ring<ThreadWire>, ring_sum<Plain<float>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<HalfLike>(pipelined_ring<ThreadWire>, ring_sum<HalfLike>) ==
          std::vector<std::string>{});
}

TEST_CASE("ring allreduce sends what its cost says", "[ring]") {
    for (const int ranks : group_sizes) {
        auto inputs = inputs_of<Plain<float>>(ranks, {4099});
        const Blocks blocks(spans_of(inputs[0]), sizeof(float), ranks);
        const Chunks chunks(blocks.largest_bytes(), 256);
        const auto outcome =
            run_allreduce<Plain<float>>(pipelined_ring<ThreadWire>, inputs, 1, 256);
        for (int rank = 0; rank < ranks && ranks > 1; ++rank) {
            const auto& wire = outcome.wires[static_cast<std::size_t>(rank)];
            CHECK(wire.bytes() ==
                  2 * blocks.total_bytes() - blocks.bytes(rank) - blocks.bytes((rank + 1) % ranks));
            CHECK(wire.messages() <= 2 * static_cast<std::size_t>(ranks - 1) * chunks.count());
            CHECK(wire.messages() >=
                  2 * static_cast<std::size_t>(ranks - 1) * (chunks.count() - 1));
        }
    }
}

TEST_CASE("ring all-gather and reduce-scatter take uneven and empty blocks", "[ring]") {
    for (const int ranks : group_sizes) {
        const auto size_of_block = [](int block) {
            return block % 3 == 1 ? std::size_t{0} : static_cast<std::size_t>(block) * 7 + 1;
        };
        std::vector<std::vector<std::int32_t>> gathered(static_cast<std::size_t>(ranks)),
            sums = gathered;
        const auto wires = run_ranks(ranks, [&](ThreadWire& wire) {
            BundleTensors<std::int32_t> all, terms;
            for (int block = 0; block < ranks; ++block) {
                all.emplace_back(size_of_block(block), block == wire.rank() ? block : -1);
                terms.emplace_back(size_of_block(block), wire.rank() + block);
            }
            ring::all_gather(wire, spans_of(all));
            TestScratch inbox(4096);
            ring::reduce_scatter(wire, spans_of(terms), inbox.span(),
                                 ScalarReduce<Plain<std::int32_t>>());
            const auto rank = static_cast<std::size_t>(wire.rank());
            for (const auto& block : all)
                gathered[rank].insert(gathered[rank].end(), block.begin(), block.end());
            sums[rank] = terms[rank];
        });
        std::vector<std::int32_t> expected;
        for (int block = 0; block < ranks; ++block)
            expected.insert(expected.end(), size_of_block(block), block);
        for (int rank = 0; rank < ranks; ++rank) {
            const auto index = static_cast<std::size_t>(rank);
            CHECK(gathered[index] == expected);
            CHECK(sums[index] == std::vector<std::int32_t>(size_of_block(rank),
                                                           ranks * (ranks - 1) / 2 + ranks * rank));
        }
    }
}

TEST_CASE("too little scratch is an error, not an overrun", "[ring]") {
    std::vector<float> data(1000);
    const std::span<std::byte> tensors[] = {std::as_writable_bytes(std::span(data))};
    const Blocks blocks(tensors, sizeof(float), 2);
    TestScratch scratch(ring::pipelined_scratch_bytes(blocks, 512) - 64);
    const ScalarReduce<Plain<float>> reduce;
    Switchboard board(2);
    ThreadWire wire(board, 0);
    CHECK_THROWS_AS(ring::pipelined_allreduce(wire, {blocks, scratch.span(), reduce, 512}), Error);
}

}  // namespace
