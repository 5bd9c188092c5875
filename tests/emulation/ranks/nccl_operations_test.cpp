// Every operation by NCCL, or what stands in for it, on ranks that are processes with an emulated
// GPU each. What NCCL cannot do goes by way of the host, in between.

#include <algorithm>
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <numeric>

#include "emulation/ranks/nccl_in_use.hpp"
#include "emulation/ranks/trainer.hpp"
#include "support/cases/join_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/cases/output_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// The case's problems; one of them is that no bundle went by NCCL.
std::string problems_by_nccl(const RankCase& body) {
    const Trainer trainer;
    auto& path = path_in_use();
    const int before = path.by_nccl;
    auto problems = problems_here(body);
    if (path.by_nccl == before) problems += "nothing went by NCCL\n";
    return problems;
}

/// Of small tensors there is more than NCCL moves at once; a large one goes alone.
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
    std::vector<int> ranks(static_cast<std::size_t>(std::max(session.size() - 1, 1)));
    std::iota(ranks.begin(), ranks.end(), session.size() == 1 ? 0 : 1);
    auto set = ProcessSet::create(ranks);
    std::shared_ptr<NcclOrStaged> path;
    if (std::ranges::count(ranks, session.rank()) != 0)
        path = use_nccl(*api::set_runtime_of(&session, set),
                        {.context = 500, .device = session.local_rank()});
    for (const std::int64_t count : {5, 100'003}) {
        start_allreduce(session, text_of("of all ", count), {DType::f32, {count}})(report);
        if (!path) continue;
        start_allreduce(set, text_of("of the set ", count), {DType::f32, {count}})(report);
        start_broadcast(set, text_of("in the set ", count), DType::f16, {count},
                        set.size() - 1)(report);
    }
    set.remove();
    report.expect(!path || path->by_nccl > 0, "the set has used NCCL");
    start_allreduce(session, "of all in the end", {DType::f32, {5}})(report);
}

}  // namespace

TEST_CASE("allreduce of every dtype, op and size by NCCL") {
    CHECK(problems_by_nccl(allreduce_sweep(100'003)) == "");
}

TEST_CASE("allreduce with scales by NCCL") {
    CHECK(problems_by_nccl(allreduce_scales) == "");
}

TEST_CASE("groups of mixed tensors by NCCL") {
    CHECK(problems_by_nccl(groups) == "");
    CHECK(problems_by_nccl(neighbours) == "");
}

TEST_CASE("broadcast from every root by NCCL") {
    CHECK(problems_by_nccl(broadcast_sweep) == "");
}

TEST_CASE("all_gather of uneven rows by NCCL") {
    CHECK(problems_by_nccl(all_gather_sweep) == "");
}

TEST_CASE("all_to_all with any splits by NCCL") {
    CHECK(problems_by_nccl(all_to_all_sweep) == "");
}

TEST_CASE("reduce_scatter of every dtype, op and uneven rows by NCCL") {
    CHECK(problems_by_nccl(reduce_scatter_sweep) == "");
}

TEST_CASE("results by NCCL go to outputs of the caller's") {
    CHECK(problems_by_nccl([](Session& session, Report& report) {
              misfits(session, report);
              outputs_beside_joined_rank(session, report);
          }) == "");
}

TEST_CASE("random operations by NCCL in random orders") {
    CHECK(problems_by_nccl(random_operations(seed(), 10)) == "");
}

TEST_CASE("ranks join while others reduce by NCCL") {
    CHECK(problems_by_nccl(uneven_steps_on_a_device) == "");
    CHECK(problems_by_nccl(uneven_steps) == "");
}

TEST_CASE("a NaN is not lost where tensors go by NCCL") {
    CHECK(problems_by_nccl(keep_nan) == "");
}

TEST_CASE("a process set has a communicator of its own") {
    CHECK(problems_by_nccl(set_of_its_own) == "");
}
