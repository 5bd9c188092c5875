#include "collectives/adasum/adasum_allreduce.hpp"

#include "device/host/host_reduce.hpp"
#include "support/cases/bundles.hpp"
#include "support/oracles/reduction_oracle.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;
using Tensors = std::vector<Tensor>;

/// Runs the adasum of floats on a thread per rank, of each rank's row, in place.
void adasum_all(ByRank<float>& tensors) {
    const device::HostReduce reduce({ReduceOp::sum, DType::f32, 1});
    on_each_rank(tensors, [&](ThreadWire& wire, TensorSpans own) {
        TestScratch scratch(adasum::allreduce_scratch_bytes<ThreadWire>(own, reduce, wire.size()));
        adasum::allreduce(wire, {own, scratch.span(), reduce, device::adasum_for(DType::f32)});
    });
}

TEST_CASE("adasum takes from each side half of what the two share", "[adasum]") {
    const auto adasum = [](std::vector<double> a, const std::vector<double>& b) {
        device::adasum_for(DType::f64)(std::as_writable_bytes(std::span(a)),
                                       std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
        return a;
    };
    const std::vector<double> a{1, 1, 0}, b{0, 0, 5}, zero(3), c{1, 0, 0};
    CHECK(adasum(a, b) == std::vector<double>{1, 1, 5});          // orthogonal: the sum
    CHECK(adasum(a, a) == a);                                     // equal: the average
    CHECK(adasum(c, {3, 0, 0}) == std::vector<double>{2, 0, 0});  // parallel: the average
    CHECK(adasum(a, zero) == a);
    CHECK(adasum(zero, a) == a);
    CHECK(adasum(zero, zero) == zero);
    CHECK(adasum(a, c) == std::vector<double>{1.25, 0.75, 0});  // (1 - 1/4) a + (1 - 1/2) c
    CHECK(adasum({}, {}).empty());
}

TEST_CASE("two ranks by hand: orthogonal gradients are summed, parallel ones averaged",
          "[adasum]") {
    ByRank<float> tensors = {{{3, 0}, {2, 2}},   // rank 0: two gradients, each weighed by itself
                             {{0, 4}, {4, 4}}};  // rank 1
    adasum_all(tensors);
    const BundleTensors<float> both = {{3, 4},   // a.b = 0
                                       {3, 3}};  // a.b = 16: (1 - 16/16) a + (1 - 16/64) b
    CHECK(tensors == ByRank<float>{both, both});
}

TEST_CASE("three ranks by hand: ranks 0 and 1 first, then rank 2", "[adasum]") {
    ByRank<float> tensors = {{{3, 0}}, {{0, 4}}, {{3, 4}}};
    adasum_all(tensors);
    const BundleTensors<float> all = {{3, 4}};  // the mean of (3, 4) = (3, 0) + (0, 4) and (3, 4)
    CHECK(tensors == ByRank<float>{all, all, all});
}

/// A rank's contribution: a tensor of each count.
Tensors inputs_of_rank(int rank, DType dtype, const std::vector<std::size_t>& counts) {
    Tensors tensors;
    for (const auto count : counts)
        tensors.push_back(random_tensor(dtype, {static_cast<std::int64_t>(count)},
                                        1000 * count + static_cast<std::uint64_t>(rank)));
    return tensors;
}

struct AdasumOutcome {
    std::vector<Tensors> results;  ///< by rank
    std::vector<ThreadWire> wires;
};

AdasumOutcome run_adasum(std::vector<Tensors> tensors, DType dtype) {
    const device::HostReduce reduce({ReduceOp::sum, dtype, 1});
    auto wires = test::run_ranks(static_cast<int>(tensors.size()), [&](ThreadWire& wire) {
        std::vector<std::span<std::byte>> spans;
        for (auto& tensor : tensors[static_cast<std::size_t>(wire.rank())])
            spans.push_back(tensor.view().memory());
        TestScratch scratch(
            adasum::allreduce_scratch_bytes<ThreadWire>(spans, reduce, wire.size()));
        adasum::allreduce(wire, {spans, scratch.span(), reduce, device::adasum_for(dtype)});
    });
    return {std::move(tensors), std::move(wires)};
}

/// The first fault of an adasum of tensors of these counts; empty if every rank has what the
/// formula gives, and all the same bits.
std::string fault_of_bundle(int ranks, DType dtype, const std::vector<std::size_t>& counts) {
    std::vector<Tensors> inputs;
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(inputs_of_rank(rank, dtype, counts));
    const auto results = run_adasum(inputs, dtype).results;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        Tensors contributions;
        for (const auto& input : inputs) contributions.push_back(input[i]);
        const auto fault = fault_of(results[0][i], 0, contributions, {.op = ReduceOp::adasum});
        if (!fault.empty()) return text_of("tensor ", i, ": ", fault);
        for (const auto& result : results)
            if (result[i].bytes != results[0][i].bytes)
                return text_of("tensor ", i, ": the ranks hold other bits");
    }
    return {};
}

// Four dtypes, 1 to 17 ranks, bundles of no to 4099 random numbers; the formula is computed in f64.
TEST_CASE("adasum is its formula along the tree, for any number of ranks and each tensor by itself",
          "[adasum]") {
    for (const auto dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
        for (const int ranks : group_sizes)
            for (const auto& counts : bundles_for(ranks)) {
                INFO(name_of(dtype) << ", " << ranks << " ranks");
                CHECK(fault_of_bundle(ranks, dtype, counts) == "");
            }
}

TEST_CASE("adasum sends what its cost says", "[adasum]") {
    const auto sent_by = [](int ranks) {
        std::vector<Tensors> inputs;
        for (int rank = 0; rank < ranks; ++rank)
            inputs.push_back(inputs_of_rank(rank, DType::bf16, {60, 40}));
        return run_adasum(std::move(inputs), DType::bf16).wires;
    };
    for (const int ranks : {1, 2, 4, 8, 16}) {
        const auto steps =
            static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks)) - 1);
        for (const auto& wire : sent_by(ranks)) {
            CHECK(wire.messages() == steps);
            CHECK(wire.bytes() == steps * 100 * sizeof(float));
        }
    }
    CHECK(sent_by(5)[4].messages() == 4);  // the short group serves the four others
}

}  // namespace
