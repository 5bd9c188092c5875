// The collectives as users call them, on ranks that are processes.
#include <bit>
#include <guozhuang/guozhuang.hpp>
#include <iostream>
#include <span>

#include "support/cases/async_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("allreduce of every dtype, op and size") {
    CHECK(problems_here(allreduce_sweep(false)) == "");
    CHECK(problems_here(allreduce_scales) == "");
}

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

TEST_CASE("on one host large sums are of one order, with shared memory or without") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.cross_size() > 1) return;
              const auto all = contributions("order", session.size(), DType::f32, {100'003});
              auto sum = all[static_cast<std::size_t>(session.rank())];
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
          }) == "");
}

TEST_CASE("the same sums from run to run") {
    CHECK(problems_here(repeated_allreduces) == "");
}

TEST_CASE("groups of mixed tensors") {
    CHECK(problems_here(grouped_operations) == "");
}

TEST_CASE("broadcast from every root") {
    CHECK(problems_here(broadcast_sweep) == "");
}

TEST_CASE("all_gather of uneven rows") {
    CHECK(problems_here(all_gather_sweep) == "");
}

TEST_CASE("all_to_all with any splits") {
    CHECK(problems_here(all_to_all_sweep) == "");
}

TEST_CASE("reduce_scatter of every dtype, op and uneven rows") {
    CHECK(problems_here(reduce_scatter_sweep) == "");
}

TEST_CASE("messages between all ranks, told apart by tag, in order within one") {
    CHECK(problems_here(message_sweep) == "");
    CHECK(problems_here(messages_in_order) == "");
}

TEST_CASE("handles, barriers, threads and orders") {
    CHECK(problems_here(handle_life) == "");
    CHECK(problems_here(barrier_beside_pending) == "");
    CHECK(problems_here(keep_alive_case) == "");
    CHECK(problems_here(many_threads) == "");
    CHECK(problems_here(unnamed_operations) == "");
    CHECK(problems_here(many_in_flight) == "");
}

TEST_CASE("random operations in random orders") {
    CHECK(problems_here(random_operations(seed(), 25)) == "");
}

TEST_CASE("many more random operations in random orders", "[.slow]") {
    RandomCount random;
    for (unsigned more = 0; more < 20; ++more)
        CHECK(random.found(problems_here(random.count(seed() + more, 200))) == "");
    std::cout << random.text() << std::endl;
}

TEST_CASE("more than 2^31 elements", "[.slow]") {
    constexpr std::size_t count = (std::size_t{1} << 31) + 12'345;
    auto& session = Session::current();
    std::vector<std::uint8_t> numbers(count, static_cast<std::uint8_t>(session.rank() + 1));
    allreduce(numbers, {.name = "more than 2^31"});
    const auto sum = static_cast<std::uint8_t>(session.size() * (session.size() + 1) / 2);
    CHECK(std::ranges::all_of(numbers, [sum](auto number) { return number == sum; }));
}
