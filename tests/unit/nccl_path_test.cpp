// Bundles for which NCCL gives the results of the host.
#include "backends/device/nccl_path.hpp"

#include <initializer_list>

#include "support/runner/catch.hpp"

using namespace guozhuang;

namespace {

bool supports(const protocol::Description& description, std::initializer_list<DType> dtypes,
              bool reproducible = false) {
    engine::Bundle bundle;
    bundle.description = &description;
    bundle.policy.reproducible = reproducible;
    std::vector<TensorView> tensors;
    for (const auto dtype : dtypes) tensors.emplace_back(nullptr, dtype, Shape{0});
    for (const auto& tensor : tensors) bundle.entries.push_back({.tensor = tensor});
    return backends::NcclPath::moves(bundle);
}

protocol::Description reduction(ReduceOp op, OperationKind operation = OperationKind::allreduce) {
    return {.operation = operation, .op = op};
}

}  // namespace

TEST_CASE("NCCL has sums and products of all but 16-bit integers") {
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::product})
        for (const auto dtype : all_dtypes)
            CHECK(supports(reduction(op), {dtype}) == (dtype != DType::i16 && dtype != DType::u16));
    CHECK(!supports(reduction(ReduceOp::adasum), {DType::f32}));
}

TEST_CASE("NCCL's minimum and maximum are those of the host for integers alone") {
    for (const auto op : {ReduceOp::min, ReduceOp::max}) {
        for (const auto dtype : {DType::u8, DType::i32, DType::u64, DType::boolean})
            CHECK(supports(reduction(op), {dtype}));
        for (const auto dtype : {DType::f16, DType::f64, DType::u16})
            CHECK(!supports(reduction(op), {dtype}));
    }
}

TEST_CASE("one tensor that NCCL cannot reduce keeps a whole bundle from it") {
    CHECK(!supports(reduction(ReduceOp::sum), {DType::f32, DType::i16}));
    CHECK(!supports(reduction(ReduceOp::sum, OperationKind::reduce_scatter), {DType::i16}));
    CHECK(supports(reduction(ReduceOp::sum, OperationKind::all_gather), {DType::i16}));
    CHECK(supports(reduction(ReduceOp::sum, OperationKind::broadcast), {DType::boolean}));
}

TEST_CASE("NCCL promises no order of sums") {
    CHECK(!supports(reduction(ReduceOp::sum), {DType::f32}, true));
    CHECK(supports(reduction(ReduceOp::sum, OperationKind::all_to_all), {DType::f32}, true));
}
