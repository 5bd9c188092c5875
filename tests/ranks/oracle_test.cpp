// MPI as the oracle: the same numbers through MPI's collectives and ours.
#include <guozhuang/guozhuang.hpp>
#include <mpi.h>

#include "support/cases/operation_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("by hand: MPI's sum, the library's and ours on paper are the same") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<int> ours{rank, 1, -5}, of_mpi = ours;
    allreduce(ours);
    MPI_Allreduce(MPI_IN_PLACE, of_mpi.data(), 3, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(ours == std::vector<int>{ranks * (ranks - 1) / 2, ranks, -5 * ranks});
    CHECK(of_mpi == ours);
}

// The sweeps below: dtypes, ops and three sizes of random numbers, by MPI and by the library.

namespace {

struct Same {
    DType dtype;
    MPI_Datatype mpi;
};

const Same integers[] = {{DType::u8, MPI_UINT8_T},   {DType::i8, MPI_INT8_T},
                         {DType::i16, MPI_INT16_T},  {DType::i32, MPI_INT32_T},
                         {DType::i64, MPI_INT64_T},  {DType::u16, MPI_UINT16_T},
                         {DType::u32, MPI_UINT32_T}, {DType::u64, MPI_UINT64_T}};
const Same floats[] = {{DType::f32, MPI_FLOAT}, {DType::f64, MPI_DOUBLE}};
const std::pair<ReduceOp, MPI_Op> ops[] = {{ReduceOp::sum, MPI_SUM},
                                           {ReduceOp::min, MPI_MIN},
                                           {ReduceOp::max, MPI_MAX},
                                           {ReduceOp::product, MPI_PROD}};

/// Reduces the tensor with MPI_Allreduce.
Tensor reduced_by_mpi(Tensor tensor, MPI_Datatype type, MPI_Op op) {
    MPI_Allreduce(MPI_IN_PLACE, tensor.bytes.data(), static_cast<int>(tensor.count()), type, op,
                  MPI_COMM_WORLD);
    return tensor;
}

/// Integers of 8 and 16 bits whose sum stays in range: where it does not, Open MPI 4.1's vector
/// code saturates.
Tensor integers_for_mpi(const std::string& name, int rank, DType dtype, std::int64_t count) {
    auto tensor = contribution(name, rank, dtype, {count});
    for (std::size_t i = 0; i < tensor.count(); ++i) {
        if (size_of(dtype) == 1) tensor.bytes[i] &= std::byte{15};
        if (dtype == DType::u16)
            tensor.store<std::uint16_t>(
                i, static_cast<std::uint16_t>(tensor.load<std::uint16_t>(i) / 16));
        if (dtype == DType::i16)
            tensor.store<std::int16_t>(
                i, static_cast<std::int16_t>(tensor.load<std::int16_t>(i) / 16));
    }
    return tensor;
}

}  // namespace

TEST_CASE("integers are MPI's, bit for bit") {
    CHECK(problems_here([](Session& session, Report& report) {
              for (const auto& [dtype, type] : integers)
                  for (const auto& [op, mpi_op] : ops)
                      for (const std::int64_t count : {1, 17, 30'000}) {
                          if (op == ReduceOp::product && size_of(dtype) < 4) continue;
                          const auto label = label_of("allreduce", dtype, op, {count});
                          auto tensor = integers_for_mpi(label, session.rank(), dtype, count);
                          const auto expected = reduced_by_mpi(tensor, type, mpi_op);
                          allreduce(tensor.view(), {.op = op});
                          report.expect(tensor.bytes == expected.bytes, label);
                      }
          }) == "");
}

TEST_CASE("floating numbers are MPI's within the rounding of the sums") {
    CHECK(problems_here([](Session& session, Report& report) {
              for (const auto& [dtype, type] : floats)
                  for (const auto& [op, mpi_op] : ops)
                      for (const std::int64_t count : {1, 17, 30'000}) {
                          const auto label = label_of("allreduce", dtype, op, {count});
                          auto tensor = contribution(label, session.rank(), dtype, {count});
                          const auto expected = reduced_by_mpi(tensor, type, mpi_op);
                          allreduce(tensor.view(), {.op = op});
                          // A bound of sums of magnitudes.
                          const double bound = op == ReduceOp::product
                                                   ? std::pow(2.0, session.size())
                                                   : 2.0 * session.size();
                          bool close = true;
                          for (std::size_t i = 0; i < tensor.count(); ++i)
                              close =
                                  close && std::abs(real_at(tensor, i) - real_at(expected, i)) <=
                                               session.size() * bound * epsilon_of(dtype);
                          report.expect(close, label);
                          if (op == ReduceOp::min || op == ReduceOp::max)
                              report.expect(tensor.bytes == expected.bytes, label + " exactly");
                      }
          }) == "");
}

TEST_CASE("all_gather, all_to_all and broadcast give what MPI gives") {
    CHECK(problems_here([](Session& session, Report& report) {
              const auto ranks = session.size();
              const auto own = contribution("oracle", session.rank(), DType::i32, {3 * ranks});
              Tensor gathered(DType::i32, {3 * ranks * ranks}), exchanged(DType::i32, {3 * ranks}),
                  told = own;
              MPI_Allgather(own.bytes.data(), 3 * ranks, MPI_INT32_T, gathered.bytes.data(),
                            3 * ranks, MPI_INT32_T, MPI_COMM_WORLD);
              MPI_Alltoall(own.bytes.data(), 3, MPI_INT32_T, exchanged.bytes.data(), 3, MPI_INT32_T,
                           MPI_COMM_WORLD);
              MPI_Bcast(told.bytes.data(), 3 * ranks, MPI_INT32_T, ranks - 1, MPI_COMM_WORLD);
              auto tensor = own;
              report.expect(all_gather(tensor.view()).bytes == gathered.bytes, "all_gather");
              report.expect(all_to_all(tensor.view()).bytes == exchanged.bytes, "all_to_all");
              broadcast(tensor.view(), ranks - 1);
              report.expect(tensor.bytes == told.bytes, "broadcast");
          }) == "");
}

TEST_CASE("MPI and the library work side by side") {
    CHECK(problems_here([](Session& session, Report& report) {
              for (int i = 0; i < 50; ++i) {
                  std::vector<float> ours(2000, 1), theirs(2000, 1);
                  const auto handle = allreduce_async(ours, {.name = "ours"});
                  MPI_Allreduce(MPI_IN_PLACE, theirs.data(), 2000, MPI_FLOAT, MPI_SUM,
                                MPI_COMM_WORLD);
                  handle.wait();
                  report.expect(ours == theirs && ours[0] == static_cast<float>(session.size()),
                                "both sums");
              }
          }) == "");
}
