// Every operation with tensors on emulated GPUs, on ranks that are processes: the cases of
// tests/support, whose tensors a Trainer has on its device.

#include <guozhuang/guozhuang.hpp>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/in_place_cases.hpp"
#include "support/cases/join_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/cases/output_cases.hpp"
#include "support/cases/process_set_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

std::string problems_on_device(const RankCase& body) {
    const Trainer trainer;
    return problems_here(body);
}

}  // namespace

TEST_CASE("allreduce of every dtype, op and size on a device") {
    CHECK(problems_on_device(allreduce_sweep(4099)) == "");
}

TEST_CASE("allreduce with scales on a device") {
    CHECK(problems_on_device(allreduce_scales) == "");
}

TEST_CASE("groups of mixed tensors on a device") {
    CHECK(problems_on_device(grouped_allreduces) == "");
}

// The longest tensor has several chunks, the last of them short. Not run with NCCL, which promises
// no order of sums.
TEST_CASE("device tensors give the bits of host tensors", "[bits]") {
    CHECK(problems_on_device([](Session& session, Report& report) {
              for (const auto dtype : {DType::f32, DType::bf16})
                  for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::adasum})
                      for (const std::int64_t count : {5, 4099, 1'310'723}) {
                          const auto name = label_of("either", dtype, op, {count});
                          auto host = contribution(name, session.rank(), dtype, {count});
                          auto tensor = host;
                          tensor.device = usual_device();
                          allreduce(host.view(), {.name = name + " host", .op = op});
                          allreduce(tensor.view(), options_of(session, name, {op}));
                          tensor.fetch();
                          report.expect(host.bytes == tensor.bytes, name + ": the bits differ");
                      }
          }) == "");
}

// CUDA's allocations often touch. No copy may reach from one into the next.
TEST_CASE("a group of tensors whose allocations touch") {
    CHECK(problems_on_device([](Session& session, Report& report) {
              const std::vector<Reduce> reduces(16, {DType::f32, {1024}, {ReduceOp::sum}});
              start_grouped_allreduce(session, "touching", reduces)(report);
          }) == "");
}

TEST_CASE("broadcast from every root on a device") {
    CHECK(problems_on_device(broadcast_sweep) == "");
}

TEST_CASE("all_gather of uneven rows on a device") {
    CHECK(problems_on_device(all_gather_sweep) == "");
}

TEST_CASE("all_to_all with any splits on a device") {
    CHECK(problems_on_device(all_to_all_sweep) == "");
}

TEST_CASE("reduce_scatter of every dtype, op and uneven rows on a device") {
    CHECK(problems_on_device(reduce_scatter_sweep) == "");
}

TEST_CASE("an output on a device of other rows than come fails on its rank alone") {
    CHECK(problems_on_device([](Session& session, Report& report) {
              misfits(session, report);
              outputs_beside_joined_rank(session, report);
          }) == "");
}

TEST_CASE("results in place on a device, and splits of reduce_scatter") {
    CHECK(problems_on_device([](Session& session, Report& report) {
              results_in_place(session, report);
              misplaced_blocks(session, report);
          }) == "");
}

// Messages among them, also from host memory to a device.
TEST_CASE("random operations on a device in random orders") {
    CHECK(problems_on_device(random_operations(seed(), 10)) == "");
}

TEST_CASE("process sets of ranks with devices", "[sets]") {
    CHECK(problems_on_device(every_operation_in_sets) == "");
    CHECK(problems_on_device(random_operations_in_sets(seed(), 3)) == "");
    CHECK(problems_on_device(sets_in_different_orders(5, 50'000)) == "");
}

TEST_CASE("ranks join while others reduce on a device") {
    CHECK(problems_on_device(uneven_steps_on_a_device) == "");
    CHECK(problems_on_device(uneven_steps) == "");
}
