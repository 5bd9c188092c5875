// The collectives as users call them, on ranks that are processes.
#include <guozhuang/guozhuang.hpp>
#include <iostream>

#include "support/async_cases.hpp"
#include "support/catch.hpp"
#include "support/mpi_report.hpp"
#include "support/operation_sweeps.hpp"
#include "support/random_operations.hpp"

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
    for (unsigned more = 0; more < 20; ++more) CHECK(random.found(problems_here(random.count(seed() + more, 200))) == "");
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
