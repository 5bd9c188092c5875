// Tests of tensors that go by NCCL or its emulation. Each rank needs a GPU and
// GUOZHUANG_DEVICE_PATH=nccl. Operations that NCCL cannot do go by way of the host, in between.

#include <algorithm>
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <numeric>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/in_place_cases.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

std::string problems_by_nccl(const RankCase& body) {
    const Trainer trainer;
    return problems_here(body);
}

/// Small tensors of more bytes than NCCL moves at once, and a large one, which goes alone.
void groups(Session& session, Report& report) {
    for (const auto op : {ReduceOp::sum, ReduceOp::average}) {
        std::vector<Reduce> reduces;
        for (const auto dtype : {DType::f32, DType::f16, DType::bf16, DType::u8, DType::i64})
            for (const Shape& shape : {Shape{3, 7}, Shape{}, Shape{0, 5}, Shape{20'011}})
                reduces.push_back({dtype, shape, {op}});
        for (int i = 0; i < 60; ++i) reduces.push_back({DType::f32, {20'011}, {op}});
        reduces.push_back({DType::f32, {300'007}, {op}});
        start_grouped_allreduce(session, text_of("group ", name_of(op)), reduces)(report);
    }
}

/// Tensors that follow each other on rank 0 alone: the ranks make the same calls all the same.
void neighbours(Session& session, Report& report) {
    auto& trainer = static_cast<Trainer&>(*device_memory());
    constexpr std::size_t count = 1000, tensors = 5;
    const std::size_t distance = session.rank() == 0 ? count : count + 64;
    std::vector<float> values(tensors * distance, 1);
    const auto memory = trainer.put_elements(values);
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < tensors; ++i)
        views.emplace_back(memory.get() + i * distance, DType::f32,
                           Shape{static_cast<std::int64_t>(count)}, trainer.stream().device);
    grouped_allreduce(views, {.op = ReduceOp::sum, .stream = trainer.stream()});
    const auto ranks = static_cast<float>(session.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        if (i % distance < count) values[i] = ranks;
    report.expect(trainer.elements(memory, values.size()) == values, "sums, and nothing between");
}

/// NCCL's minimum and maximum lose a NaN, so those of floats do not go by it.
void keep_nan(Session& session, Report& report) {
    auto& trainer = static_cast<Trainer&>(*device_memory());
    for (const auto op : {ReduceOp::min, ReduceOp::max, ReduceOp::sum}) {
        const auto memory = trainer.put_elements(
            std::vector<float>{2, session.rank() == 0 ? std::nanf("") : 1.0F, 3});
        allreduce(trainer.view(memory, 3), {.op = op, .stream = trainer.stream()});
        report.expect(std::isnan(trainer.elements(memory, 3)[1]), text_of("NaN by ", name_of(op)));
    }
}

/// All ranks but the first, with a communicator of their own, in between operations of all.
void set_of_its_own(Session& session, Report& report) {
    std::vector<int> ranks(static_cast<std::size_t>(session.size() - 1));
    std::iota(ranks.begin(), ranks.end(), 1);
    auto set = ProcessSet::create(ranks);
    for (const std::int64_t count : {5, 100'003}) {
        start_allreduce(session, text_of("of all ", count), {DType::f32, {count}})(report);
        if (session.rank() == 0) continue;
        start_allreduce(set, text_of("of the set ", count), {DType::f32, {count}})(report);
        start_broadcast(set, text_of("in the set ", count), DType::f16, {count},
                        set.size() - 1)(report);
    }
    set.remove();
    start_allreduce(session, "of all in the end", {DType::f32, {5}})(report);
}

}  // namespace

TEST_CASE("allreduce of every dtype and op by NCCL, of tensors that go alone") {
    CHECK(problems_by_nccl(allreduce_sweep(100'003)) == "");
}

TEST_CASE("groups of mixed tensors by NCCL") {
    CHECK(problems_by_nccl(groups) == "");
    CHECK(problems_by_nccl(neighbours) == "");
}

TEST_CASE("a NaN is not lost where tensors go by NCCL") {
    CHECK(problems_by_nccl(keep_nan) == "");
}

TEST_CASE("results in place by NCCL, and splits of reduce_scatter") {
    CHECK(problems_by_nccl(results_in_place) == "");
    CHECK(problems_by_nccl(misplaced_blocks) == "");
}

TEST_CASE("a process set has a communicator of its own") {
    CHECK(problems_by_nccl(set_of_its_own) == "");
}
