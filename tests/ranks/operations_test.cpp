// The collectives as users call them, on ranks that are processes. Each begins by hand, on any
// number of ranks; the sweeps after that are of tests/support/cases.
#include <bit>
#include <chrono>
#include <cstdlib>
#include <guozhuang/guozhuang.hpp>
#include <iostream>
#include <span>
#include <thread>

#include "support/cases/async_cases.hpp"
#include "support/cases/in_place_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/cases/output_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("allreduce adds up what the ranks bring") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<int> numbers{rank, 1};
    allreduce(numbers);
    CHECK(numbers ==
          std::vector<int>{ranks * (ranks - 1) / 2, ranks});  // 0 + 1 + ... and 1 + 1 + ...

    std::vector<float> means{static_cast<float>(2 * rank), 1};
    allreduce(means, {.op = ReduceOp::average});
    CHECK(means == std::vector<float>{static_cast<float>(ranks - 1), 1});
}

TEST_CASE("all_gather of as many rows as the rank's number gives them in rank order") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    const std::vector<int> rows(static_cast<std::size_t>(rank), 10 * rank);
    const auto gathered = all_gather(rows);  // of three ranks: nothing, {10}, {20, 20}
    std::vector<int> expected;
    std::vector<std::int64_t> expected_rows;
    for (int from = 0; from < ranks; ++from) {
        expected.insert(expected.end(), static_cast<std::size_t>(from), 10 * from);
        expected_rows.push_back(from);
    }
    CHECK(gathered.as<int>() == expected);  // of three ranks: {10, 20, 20}
    CHECK(gathered.rows == expected_rows);  // of three ranks: {0, 1, 2}
}

TEST_CASE("broadcast from the last rank gives all what it has") {
    const int rank = Session::current().rank(), last = Session::current().size() - 1;
    std::vector<double> numbers{0.5 * rank, 7};
    broadcast(numbers, last);
    CHECK(numbers == std::vector<double>{0.5 * last, 7});
}

TEST_CASE("all_to_all sends rank r as many rows as its number") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<int> outgoing, expected;  // of three ranks, on rank 1: {11, 12, 12}
    std::vector<std::int64_t> splits;     // of three ranks: {0, 1, 2}
    for (int to = 0; to < ranks; ++to) {
        outgoing.insert(outgoing.end(), static_cast<std::size_t>(to), 10 * rank + to);
        splits.push_back(to);
    }
    const auto incoming = all_to_all(TensorView(outgoing), splits);
    for (int from = 0; from < ranks; ++from)
        expected.insert(expected.end(), static_cast<std::size_t>(rank), 10 * from + rank);
    CHECK(incoming.as<int>() == expected);  // of three ranks, on rank 1: {1, 11, 21}
    CHECK(incoming.rows == std::vector<std::int64_t>(static_cast<std::size_t>(ranks), rank));
}

TEST_CASE("reduce_scatter of a row more than there are ranks: rank 0 has two") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<int> numbers{1};
    for (int each = 0; each < ranks; ++each) numbers.push_back(10 * each);
    const auto share = reduce_scatter(numbers);  // all bring {1, 0, 10, 20, ...}
    const auto expected =
        rank == 0 ? std::vector<int>{ranks, 0} : std::vector<int>{ranks * 10 * rank};
    CHECK(share.as<int>() == expected);
}

TEST_CASE("the average of large numbers of f16 does not overflow in a reduce_scatter") {
    Tensor numbers(DType::f16, {100});
    constexpr std::uint16_t forty_thousand = 0x78E2;  // two of them would be infinite
    for (std::size_t i = 0; i < numbers.count(); ++i) numbers.store(i, forty_thousand);
    const auto share = reduce_scatter(numbers.view(), {.op = ReduceOp::average});
    numbers.bytes.resize(share.bytes.size());
    CHECK(share.bytes == numbers.bytes);
}

TEST_CASE("send to the right neighbour, recv from the left one") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    const std::vector<int> out{rank, 42};
    std::vector<int> in{-1, -1};
    const auto sent = send_async(out, right, {.tag = 5});  // async: all send first
    recv(in, left, {.tag = 5});
    sent.wait();
    CHECK(in == std::vector<int>{left, 42});
}

// Sweeps. problems_here() runs a case of tests/support/cases on this rank; what it returns, a line
// for each thing that was wrong here or unlike rank 0, is to be nothing.

// Every dtype with every op it has, of 0, 1, p-1, p, p+1 and 4099 elements, all in flight at once;
// then with scales. Compared with the oracle: integers exactly, floats within their rounding.
TEST_CASE("nobody leaves a barrier before all have come") {
    const auto& session = Session::current();
    const auto now = [] {  // the same clock for all processes of a machine
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch());
    };
    for (int round = 0; round < 20; ++round) {
        if (round % session.size() == session.rank())
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        double last = now().count();
        barrier();
        const double left = now().count();
        allreduce(last, {.op = ReduceOp::max});
        CHECK(left >= last);
    }
}

TEST_CASE("allreduce of every dtype, op and size") {
    CHECK(problems_here(allreduce_sweep(4099)) == "");
    CHECK(problems_here(allreduce_scales) == "");
}

// The last segment of 1,000,003 elements is short. Compared with the oracle.
TEST_CASE("allreduce of many segments") {
    CHECK(problems_here([](Session& session, Report& report) {
              for (const auto dtype : {DType::bf16, DType::f32, DType::i64})
                  start_allreduce(session, label_of("long", dtype, ReduceOp::average, {1'000'003}),
                                  {dtype, {1'000'003}, {ReduceOp::average}})(report);
          }) == "");
}

namespace {

/// The sum along the balanced tree over rank index, split at the largest power of two below the
/// count.
float tree_sum_of(std::span<const float> terms) {
    if (terms.size() == 1) return terms[0];
    const auto split = std::bit_floor(terms.size() - 1);
    return tree_sum_of(terms.first(split)) + tree_sum_of(terms.subspan(split));
}

}  // namespace

// Bit for bit: this test adds up along the tree what all ranks bring.
TEST_CASE("on one host large sums are of one order, with shared memory or without; or if wanted") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.cross_size() > 1 && std::getenv("GUOZHUANG_REPRODUCIBLE") == nullptr)
                  return;
              const auto all = contributions("order", session.size(), DType::f32, {100'003});
              auto sum = all[static_cast<std::size_t>(session.rank())];
              auto share = reduce_scatter(sum.view());
              allreduce(sum.view());
              std::size_t others = 0;
              std::vector<float> terms(all.size());
              for (std::size_t i = 0; i < sum.count(); ++i) {
                  for (std::size_t rank = 0; rank < all.size(); ++rank)
                      terms[rank] = all[rank].load<float>(i);
                  others += sum.load<float>(i) != tree_sum_of(terms);
              }
              report.expect(others == 0,
                            text_of(others, " of ", sum.count(), " sums are not the tree's"));
              report.expect(all_gather(share.view()).bytes == sum.bytes,
                            "a reduce_scatter gives other sums");
          }) == "");
}

// Three sizes, 40 times each. The bits of each run are compared with those of the first.
TEST_CASE("the same sums from run to run") {
    CHECK(problems_here(repeated_allreduces) == "");
}

// allreduce, all_gather and reduce_scatter of groups whose dtypes and shapes differ, 0 dimensions
// and no elements among them. Each tensor is compared with the oracle.
TEST_CASE("groups of mixed tensors") {
    CHECK(problems_here(grouped_operations) == "");
}

// Every root, dtype and six shapes. All hold the root's bytes.
TEST_CASE("broadcast from every root") {
    CHECK(problems_here(broadcast_sweep) == "");
}

// Every dtype and three shapes of a row; some ranks bring no rows, then none does. Rows, shape and
// bytes are those of the ranks' tensors, one after the other.
TEST_CASE("all_gather of uneven rows") {
    CHECK(problems_here(all_gather_sweep) == "");
}

// Every dtype; each pair of ranks has a split of its own, zeros among them, or all the same. Rows,
// shape and bytes are those that the others have cut from theirs.
TEST_CASE("all_to_all with any splits") {
    CHECK(problems_here(all_to_all_sweep) == "");
}

// Every dtype with every op but adasum, of 0, 1, p-1, p+1 and 1000 rows. Each rank compares its
// share with the oracle.
TEST_CASE("reduce_scatter of every dtype, op and uneven rows") {
    CHECK(problems_here(reduce_scatter_sweep) == "");
}

TEST_CASE("results in the caller's memory, also where some ranks give none or of a wrong size") {
    for (const auto& body : all_output_cases) CHECK(problems_here(body) == "");
}

// Equal and given parts, small and large, with scales; and what is refused.
TEST_CASE("results in place, and splits of reduce_scatter") {
    for (const auto& body : all_in_place_cases) CHECK(problems_here(body) == "");
}

// Every rank sends four messages to every rank, received by tag in the opposite order; then three
// under one tag. The bytes received are those that were sent.
TEST_CASE("messages between all ranks, told apart by tag, in order within one") {
    CHECK(problems_here(message_sweep) == "");
    CHECK(problems_here(messages_in_order) == "");
}

// One property each, which its name in async_cases.hpp says.
TEST_CASE("handles, barriers, threads and orders") {
    CHECK(problems_here(handle_life) == "");
    CHECK(problems_here(barrier_beside_pending) == "");
    CHECK(problems_here(keep_alive_case) == "");
    CHECK(problems_here(many_threads) == "");
    CHECK(problems_here(unnamed_operations) == "");
    CHECK(problems_here(many_in_flight) == "");
}

// 25 rounds of up to 12 random operations, by one seed: each rank submits them in an order of its
// own. Each is checked as in the sweeps above.
TEST_CASE("random operations in random orders") {
    CHECK(problems_here(random_operations(seed(), 25)) == "");
}

TEST_CASE("many more random operations in random orders", "[.slow]") {
    RandomTotals totals;
    for (unsigned more = 0; more < 20; ++more)
        CHECK(totals.found(problems_here(totals.count(seed() + more, 200))) == "");
    std::cout << totals.text() << std::endl;
}

TEST_CASE("more than 2^31 elements", "[.slow]") {
    constexpr std::size_t count = (std::size_t{1} << 31) + 12'345;
    auto& session = Session::current();
    std::vector<std::uint8_t> numbers(count, static_cast<std::uint8_t>(session.rank() + 1));
    allreduce(numbers, {.name = "more than 2^31"});
    const auto sum = static_cast<std::uint8_t>(session.size() * (session.size() + 1) / 2);
    CHECK(std::ranges::all_of(numbers, [sum](auto number) { return number == sum; }));
}
