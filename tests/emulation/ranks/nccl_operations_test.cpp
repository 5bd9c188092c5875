// Every operation by NCCL, or what stands in for it, on ranks that are processes with an emulated
// GPU each. What NCCL cannot do goes by way of the host, in between.

#include <guozhuang/guozhuang.hpp>

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

NcclOrStaged& path_in_use() {
    static const auto path = use_nccl(Session::current());
    return *path;
}

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
