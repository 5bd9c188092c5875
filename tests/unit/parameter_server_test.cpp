#include "collectives/direct/direct_allreduce.hpp"
#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

// The parameter server is the direct exchange of one block, which is rank 0's.

TEST_CASE("three ranks by hand: rank 0 adds up for all and tells them", "[parameter_server]") {
    ByRank<int> tensors = {{{1, 2}, {3}}, {{10, 20}, {30}}, {{100, 200}, {300}}};  // by rank
    const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
        const Blocks bundle(own, sizeof(int), 1);  // one block: all of it
        TestScratch scratch(direct::allreduce_scratch_bytes(wire, bundle, 64));
        direct::allreduce(wire, {bundle, scratch.span(), Sum<int>(), 64});
    });
    const BundleTensors<int> sums = {{111, 222}, {333}};
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    CHECK(wires[0].bytes() == 2 * 3 * sizeof(int));  // the sums, to both workers
    CHECK(wires[1].bytes() == 3 * sizeof(int));      // what rank 1 had
    CHECK(wires[2].bytes() == 3 * sizeof(int));
}

// Sweep: 1 to 17 ranks, bundles of no to 4099 random numbers, segments of 64 bytes to 1 MiB. Every
// rank's result is compared bit for bit with tree_sum(), one loop that adds up in tree order.
TEST_CASE("a parameter server sums in tree order", "[parameter_server]") {
    CHECK(mismatches_over_sizes<I64>(one_server<ThreadWire>, tree_sum<I64>) == none);
    CHECK(mismatches_over_sizes<HalfLike>(one_server<ThreadWire>, tree_sum<HalfLike>) == none);
}

TEST_CASE("everything passes through the server", "[parameter_server]") {
    const std::size_t bytes = 4099 * sizeof(float);
    for (const int ranks : group_sizes) {
        auto tensors = inputs_of<F32>(ranks, {4099});
        const auto wires = on_each_rank(tensors, [](ThreadWire& wire, TensorSpans own) {
            one_server(wire, own, Sum<float>(), 1 << 20);
        });
        const auto workers = static_cast<std::size_t>(ranks - 1);
        CHECK(wires[0].bytes() == workers * bytes);
        CHECK(wires[0].messages() == workers);
        for (std::size_t rank = 1; rank <= workers; ++rank) CHECK(wires[rank].bytes() == bytes);
    }
}

}  // namespace
