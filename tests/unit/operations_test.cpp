// The collectives as users call them, on ranks that are threads.
#include <atomic>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <iostream>
#include <iterator>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "device/reduction.hpp"
#include "support/cases/async_cases.hpp"
#include "support/cases/error_cases.hpp"
#include "support/cases/in_place_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/cases/output_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/sanitizer.hpp"
#include "support/runner/temporary_directory.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

/// Ranks that take turns make blocking calls at the same time, so these are eager; the timeline of
/// one says so. An asynchronous call is negotiated.
TEST_CASE("an eager allreduce has the bits of a negotiated one") {
    const int ranks = GENERATE(1, 2, 3, 4);
    const auto dtype = GENERATE(DType::f32, DType::f64, DType::i32, DType::f16, DType::bf16);
    const auto op = GENERATE(ReduceOp::sum, ReduceOp::average, ReduceOp::max, ReduceOp::product);
    const std::size_t count = GENERATE(5, 1000, 30'000);  // by everybody, in one segment, in more
    CAPTURE(ranks, name_of(dtype), name_of(op), count);
    const double scale = is_floating(dtype) ? 0.75 : 1;
    const double prescale = op == ReduceOp::max ? scale : 1;
    const TemporaryDirectory directory;
    const Environment environment("GUOZHUANG_TIMELINE", directory / "traces");
    const auto body = [&](Session& session, Report& report) {
        std::vector<std::uint8_t> eager(count * size_of(dtype));
        for (std::size_t i = 0; i < eager.size(); ++i)  // no NaN in any floating dtype
            eager[i] = static_cast<std::uint8_t>(
                (i * 37 + static_cast<std::size_t>(session.rank()) * 11) % 64);
        auto negotiated = eager;
        const AllreduceOptions options{
            .name = "numbers", .op = op, .prescale = prescale, .postscale = scale};
        const Shape shape{static_cast<std::int64_t>(count)};
        allreduce(TensorView(eager.data(), dtype, shape), options);
        allreduce_async(TensorView(negotiated.data(), dtype, shape), options).wait();
        report.expect(eager == negotiated, "the same bits");
    };
    CHECK(problems_among(ranks, body, {.turns = 5}) == "");
    std::ifstream trace(directory / "traces/rank0.json");
    const std::string text(std::istreambuf_iterator<char>(trace), {});
    const bool is_eager = text.find(R"("name":"eager","ph":"B")") != std::string::npos;
    // Averages of integers are negotiated, and what is to be scaled before.
    CHECK(is_eager == (ranks == 1 || (prescale == 1 && !device::averages_in_i64(op, dtype))));
    CHECK(text.find(R"("name":"negotiate","ph":"B")") != std::string::npos);
}

TEST_CASE("worked examples on three ranks") {
    CHECK(
        problems_among(3, [](Session& session, Report& report) {
            const int rank = session.rank();
            std::vector<float> numbers{static_cast<float>(rank), 2, -1};
            allreduce(numbers);
            report.expect(numbers == std::vector<float>{3, 6, -3}, "allreduce");

            std::vector<int> rows(static_cast<std::size_t>(rank), rank);
            const auto gathered = all_gather(rows);
            report.expect(gathered.as<int>() == std::vector<int>{1, 2, 2} &&
                              gathered.rows == std::vector<std::int64_t>{0, 1, 2},
                          "all_gather");

            double number = rank;
            broadcast(number, 2);
            report.expect(number == 2, "broadcast");

            std::vector<int> six{0, 1, 2, 3, 4, 5};
            const auto exchanged = all_to_all(TensorView(six), std::vector<std::int64_t>{1, 2, 3});
            const std::vector<int> expected[] = {
                {0, 0, 0}, {1, 2, 1, 2, 1, 2}, {3, 4, 5, 3, 4, 5, 3, 4, 5}};
            report.expect(exchanged.as<int>() == expected[rank], "all_to_all");

            std::vector<int> four{1, 2, 3, 4};
            const auto share = reduce_scatter(four, {.op = ReduceOp::max});
            const std::vector<int> shares[] = {{1, 2}, {3}, {4}};
            report.expect(share.as<int>() == shares[rank], "reduce_scatter");
            barrier();
        }) == "");
}

TEST_CASE("an asynchronous operation that waits first is complete when it returns") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              float sum = 1;
              detail::wait_first(20s);
              const auto handle = allreduce_async(sum);
              report.expect(handle.done() && sum == 3, "allreduce");
              const int rank = session.rank();
              const std::vector<int> row{rank};
              detail::wait_first(20s);
              const auto gathered = all_gather_async(row);
              report.expect(gathered.done(), "all_gather");
              report.expect(gathered.take().as<int>() == std::vector<int>{0, 1, 2}, "its result");

              const std::vector<float> numbers(static_cast<std::size_t>(rank + 1));
              detail::wait_first(20s);
              const auto refused = reduce_scatter_async(numbers);
              expect_error(report, ErrorCode::mismatch, {"shapes differ"}, [&] { refused.wait(); });
          }) == "");
}

TEST_CASE("an operation whose first wait is over goes on") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              float sum = 1, late = 1;
              if (session.rank() == 0) {
                  detail::wait_first(1ms);
                  const auto early = allreduce_async(sum, {.name = "early"});
                  report.expect(!early.done(), "rank 1 has not come");
                  allreduce(late, {.name = "late"});
                  early.wait();
              } else {
                  allreduce(late, {.name = "late"});
                  allreduce(sum, {.name = "early"});
              }
              report.expect(sum == 2, "the sum");
          }) == "");
}

TEST_CASE("a rank that is alone does not write to its tensors") {
    const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    auto* const memory =
        static_cast<float*>(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory != MAP_FAILED);
    const TensorView zeros(memory, {static_cast<std::int64_t>(bytes / sizeof(float))});
    run_ranks(1, [&](Session&) {
        for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                              ReduceOp::product, ReduceOp::adasum}) {
            allreduce(zeros, {.op = op});
            allreduce_async(zeros, {.op = op}).wait();
            grouped_allreduce({{zeros, zeros}}, {.op = op});
        }
        broadcast(zeros, 0);
        static_cast<void>(all_gather(zeros));
        static_cast<void>(reduce_scatter(zeros));
        static_cast<void>(all_to_all(zeros));
        static_cast<void>(all_gather(zeros, {.outputs = {zeros}}));
        static_cast<void>(reduce_scatter(zeros, {.op = ReduceOp::average, .outputs = {zeros}}));
        const TensorView integers(memory, DType::i32, zeros.shape);
        static_cast<void>(
            reduce_scatter(integers, {.op = ReduceOp::average, .outputs = {integers}}));
        GradientReducer({{"zeros", zeros, zeros}}).finish_pass();
        broadcast_parameters(std::vector<Parameter>{{"zeros", zeros, {}}});
        check_consistent(std::vector<Parameter>{{"zeros", zeros, {}}});
    });
    CHECK(munmap(memory, bytes) == 0);
}

TEST_CASE("a result gives its elements only as what they are") {
    run_ranks(1, [](Session&) {
        std::vector<int> numbers{1};
        auto result = all_gather(numbers);
        CHECK_THROWS_AS(result.as<float>(), Error);
        CHECK_THROWS_AS(result.values<unsigned>(), Error);
        CHECK(result.as<int>() == numbers);
        CHECK(std::as_const(result).values<int>().data() == result.view().data);
        result.values<int>()[0] = 7;
        CHECK(result.as<int>() == std::vector{7});
        const auto moved = std::move(result);
        CHECK(moved.as<int>() == std::vector{7});
        CHECK(result.values<int>().empty());  // NOLINT(bugprone-use-after-move)
        CHECK(Result().as<float>().empty());
        const auto handle = all_gather_async(numbers);
        CHECK(handle.take().as<int>() == numbers);
        CHECK_THROWS_AS(handle.take(), Error);  // it has been taken
    });
}

// ThreadSanitizer sees threads that race for it even where they do not meet.
TEST_CASE("a result goes to one of the threads that take it") {
    constexpr int operations = 200;
    std::atomic<int> taken{0}, refused{0};
    run_ranks(1, [&](Session& session) {
        std::vector<int> numbers(100, 7);
        std::vector<ResultHandle> handles;
        for (int i = 0; i < operations; ++i)
            handles.push_back(all_gather_async(numbers, {.session = &session}));
        for (const auto& handle : handles) handle.wait();
        const auto take_all = [&] {
            for (const auto& handle : handles)
                if (error_of([&] { taken += handle.take().as<int>() == numbers ? 1 : 0; }))
                    ++refused;
        };
        const std::jthread other(take_all);
        take_all();
    });
    CHECK(taken == operations);
    CHECK(refused == operations);
}

TEST_CASE("allreduce of every dtype, op and size") {
    for (const int ranks : rank_counts({1, 2, 3, 4, 5, 8}))
        CHECK(problems_among(ranks, allreduce_sweep(under_sanitizer ? 20'011 : 100'003)) == "");
}

TEST_CASE("sweeps of the other operations, and operations in flight together") {
    const std::pair<const char*, RankCase> cases[] = {
        {"scales multiply each contribution and the whole", allreduce_scales},
        {"groups of mixed tensors", grouped_operations},
        {"broadcast from every root", broadcast_sweep},
        {"all_gather of uneven rows", all_gather_sweep},
        {"all_to_all with any splits", all_to_all_sweep},
        {"reduce_scatter of every dtype, op and uneven rows", reduce_scatter_sweep},
        {"messages between all ranks, told apart by tag", message_sweep},
        {"messages of one tag, in order", messages_in_order},
        {"handles tell whether an operation is done, and bound a wait", handle_life},
        {"a barrier says nothing about other operations", barrier_beside_pending},
        {"an owner of the memory is kept until the operation is complete", keep_alive_case},
        {"several threads of a rank use a session at once", many_threads},
        {"operations without a name meet in the order of their calls", unnamed_operations},
        {"many operations in flight, submitted in opposite orders", many_in_flight}};
    for (const auto& [name, body] : cases)
        for (const int ranks : rank_counts({1, 2, 3, 4, 5, 8})) {
            INFO(name << " on " << ranks << " ranks");
            CHECK(problems_among(ranks, body) == "");
        }
}

TEST_CASE("the same sums from run to run") {
    for (const int ranks : rank_counts({2, 3}))
        CHECK(problems_among(ranks, repeated_allreduces) == "");
}

TEST_CASE("results in the caller's memory, also where some ranks give none or of a wrong size") {
    for (const int ranks : rank_counts({1, 2, 3, 4}))
        for (const auto& body : all_output_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("results in place, and splits of reduce_scatter") {
    for (const int ranks : rank_counts({1, 2, 3, 4}))
        for (const auto& body : all_in_place_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE(
    "an output of other rows than come, in a process set, which is named by ranks of the job") {
    CHECK(problems_among(4, [](Session& session, Report& report) {
              auto set = ProcessSet::create(std::vector{1, 3});
              if (session.rank() % 2 == 1) misfits(Among(set), report);
              set.remove();
          }) == "");
}

TEST_CASE("an operation whose handle is dropped goes on") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              std::vector<int> numbers(1000, 1);
              allreduce_async(numbers, {.name = "dropped"});
              session.close();  // completes what is pending
              report.expect(numbers == std::vector<int>(1000, 3), "the sum");
          }) == "");
}

TEST_CASE("a handle may outlive its session") {
    std::vector<Handle> handles(2);
    std::vector<int> numbers[2] = {{1}, {2}};
    run_ranks(2, [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        handles[rank] = allreduce_async(numbers[rank]);
    });
    for (const auto& handle : handles) {
        CHECK(handle.done());
        CHECK_NOTHROW(handle.wait());
    }
    CHECK(numbers[0] == std::vector<int>{3});
}

TEST_CASE("random operations in random orders") {
    for (const int ranks : rank_counts({1, 2, 3, 4, 5, 8}))
        CHECK(problems_among(ranks, random_operations(seed(), 20)) == "");
}

TEST_CASE("many more random operations in random orders", "[.slow]") {
    RandomTotals totals;
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 17})
        for (unsigned more = 0; more < 2; ++more)
            CHECK(totals.found(problems_among(
                      ranks, totals.count(seed() + more, ranks > 7 ? 30 : 120))) == "");
    std::cout << totals.text() << std::endl;
}
