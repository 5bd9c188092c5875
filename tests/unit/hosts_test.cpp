// Ranks on several hosts, simulated: threads that take each other for ranks of as many hosts.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>

#include "collectives/algorithms.hpp"
#include "support/cases/error_cases.hpp"
#include "support/cases/join_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/cases/process_set_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/cases/training_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/temporary_directory.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

struct Job {
    int ranks = 0, hosts = 0;
};
constexpr Job even_jobs[] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}};
constexpr Job uneven_jobs[] = {{3, 2}, {5, 3}, {7, 3}};  // 2+1, 2+2+1 and 3+2+2 ranks
constexpr Job lone_ranks = {2, 2};                       // one on each host

void check(const Job& job, const RankCase& body) {
    INFO(job.ranks << " ranks on " << job.hosts << " hosts");
    CHECK(problems_among(job.ranks, body, {.hosts = job.hosts}) == "");
}
void check_all(const RankCase& body) {
    for (const auto& job : even_jobs) check(job, body);
    for (const auto& job : uneven_jobs) check(job, body);
    check(lone_ranks, body);
}

/// The algorithms that rank 0 used, as its timeline names them.
std::set<std::string> algorithms(const Job& job, std::int64_t count, bool in_a_set = false) {
    const TemporaryDirectory directory;
    const Environment timeline("GUOZHUANG_TIMELINE", directory / "traces");
    run_ranks(job.ranks,
              [&](Session& session) {
                  std::vector<float> numbers(static_cast<std::size_t>(count), 1);
                  std::vector<int> everybody(static_cast<std::size_t>(session.size()));
                  std::iota(everybody.begin(), everybody.end(), 0);
                  allreduce(numbers, {.process_set =
                                          in_a_set ? ProcessSet::create(everybody) : ProcessSet()});
              },
              {.hosts = job.hosts});
    std::ostringstream text;
    text << std::ifstream(directory / "traces/rank0.json").rdbuf();
    std::set<std::string> found;
    const auto look_for = [&](std::string_view name) {
        if (text.str().find(fmt::format("\"{}\"", name)) != std::string::npos) found.emplace(name);
    };
    for (const auto& row : selection::algorithms) look_for(row.name);
    look_for("adasum");
    look_for("in_log");
    return found;
}

/// Averages tensors of many sizes, one by one or as one group, and returns rank 0's bytes.
std::vector<std::byte> averages(const Job& job, bool grouped) {
    std::vector<std::byte> all;
    run_ranks(
        job.ranks,
        [&](Session& session) {
            std::vector<Tensor> tensors;
            std::vector<TensorView> views;
            for (const auto dtype : {DType::bf16, DType::f32, DType::f64})
                for (const std::int64_t count : {1, 1000, 9'001, 50'001})
                    tensors.push_back(contribution(label_of("", dtype, ReduceOp::average, {count}),
                                                   session.rank(), dtype, {count}));
            for (auto& tensor : tensors) views.push_back(tensor.view());
            if (grouped)
                grouped_allreduce(views, {.op = ReduceOp::average});
            else
                for (const auto& view : views) allreduce(view, {.op = ReduceOp::average});
            if (session.rank() > 0) return;
            for (const auto& tensor : tensors)
                all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
        },
        {.hosts = job.hosts});
    return all;
}

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("a session knows where its rank is") {
    check({6, 3}, [](Session& session, Report& report) {
        const int rank = session.rank();
        report.expect(session.local_rank() == rank % 2 && session.local_size() == 2, "local");
        report.expect(session.cross_rank() == rank / 2 && session.cross_size() == 3 &&
                          session.is_homogeneous(),
                      "across");
    });
    check({5, 2}, [](Session& session, Report& report) {
        const int rank = session.rank();
        report.expect(session.local_rank() == (rank < 3 ? rank : rank - 3) &&
                          session.local_size() == (rank < 3 ? 3 : 2),
                      "local");
        report.expect(session.cross_rank() == (rank < 3 ? 0 : 1) && session.cross_size() == 2 &&
                          !session.is_homogeneous(),
                      "across");
    });
    CHECK_THROWS_AS(run_ranks(2, [](Session&) {}, {.hosts = 3}), Error);
    CHECK_THROWS_AS(run_ranks(2, [](Session&) {}, {.hosts = 0}), Error);
}

TEST_CASE(
    "large tensors go level by level where a host has several ranks, and else around the ring") {
    for (const auto& job : even_jobs) CHECK(algorithms(job, 100'003) == Names{"hierarchical"});
    for (const auto& job : uneven_jobs) CHECK(algorithms(job, 100'003) == Names{"hierarchical"});
    CHECK(algorithms(lone_ranks, 100'003) == Names{"ring"});
    CHECK(algorithms({4, 2}, 100'003, true) == Names{"hierarchical"});
    CHECK(algorithms({3, 2}, 100'003, true) == Names{"hierarchical"});
    CHECK(algorithms({4, 1}, 100'003, true) == Names{"staged"});
    CHECK(algorithms({4, 2}, 257) == Names{"recursive_doubling"});
    CHECK(algorithms({4, 2}, 256) == Names{"in_log"});
    CHECK(algorithms({4, 2}, 256, true) == Names{"in_log"});
    const Environment forced("GUOZHUANG_ALGORITHM", "ring");
    CHECK(algorithms({4, 2}, 100'003) == Names{"ring"});
}

TEST_CASE("allreduce on several hosts: every dtype, op and size") {
    check_all(allreduce_sweep(100'003));
}

TEST_CASE("allreduce on several hosts: scales and groups") {
    check_all(allreduce_scales);
    check_all(grouped_operations);
}

TEST_CASE("allreduce on several hosts: many segments") {
    for (const auto* const segment : {"1K", "256K"}) {
        const Environment segments("GUOZHUANG_SEGMENT_BYTES", segment);
        check_all([](Session& session, Report& report) {
            for (const auto dtype : {DType::bf16, DType::f64})
                start_allreduce(session, label_of("long", dtype, ReduceOp::average, {200'003}),
                                {dtype, {200'003}, {ReduceOp::average}})(report);
        });
    }
}

TEST_CASE("the other operations on several hosts") {
    for (const auto& job : {Job{4, 2}, Job{3, 2}}) {
        check(job, broadcast_sweep);
        check(job, all_gather_sweep);
        check(job, all_to_all_sweep);
        check(job, reduce_scatter_sweep);
    }
}

TEST_CASE("random operations on several hosts, in random orders") {
    for (const auto& job : {Job{4, 2}, Job{6, 3}, Job{3, 2}})
        check(job, random_operations(seed(), 15));
    for (std::uint64_t turns = 0; turns < 4; ++turns) {
        INFO("turns " << turns);
        CHECK(problems_among(4, random_operations(turns, 5), {.turns = turns, .hosts = 2}) == "");
    }
}

TEST_CASE("process sets, joins and training on several hosts") {
    for (const auto& job : {Job{4, 2}, Job{3, 2}, Job{5, 2}}) {
        for (const auto& body : all_process_set_cases) check(job, body);
        check(job, random_operations_in_sets(seed(), 5));
        for (const auto& body : all_join_cases) check(job, body);
        for (const auto& body : all_training_cases) check(job, body);
    }
}

TEST_CASE("sums of large tensors on several hosts do not hang on what travels with them") {
    for (const auto& job : {Job{4, 2}, Job{6, 3}, Job{5, 2}}) {
        const auto expected = averages(job, false);
        CHECK((averages(job, true) == expected));
        const Environment segments("GUOZHUANG_SEGMENT_BYTES", "1K");
        CHECK((averages(job, true) == expected));
        // Otherwise the next case would show nothing.
        CHECK((averages({job.ranks, 1}, false) != expected));
    }
}

TEST_CASE("reproducible sums do not hang on the hosts") {
    const Environment reproducible("GUOZHUANG_REPRODUCIBLE", "1");
    for (const int ranks : {4, 5, 6}) {
        const auto expected = averages({ranks, 1}, false);
        for (const int hosts : {2, 3, ranks}) CHECK((averages({ranks, hosts}, true) == expected));
    }
}

TEST_CASE("arenas are private where not all ranks are on one host, and all is well") {
    check({4, 2}, [](Session& session, Report& report) {
        GradientArena arena(std::size_t{1} << 20, &session);
        report.expect(!arena.is_shared(), "the arena is shared");
        auto* const numbers = static_cast<float*>(arena.allocate(400'000));
        std::fill_n(numbers, 100'000, static_cast<float>(session.rank()));
        allreduce(std::span(numbers, 100'000));
        report.expect(
            std::all_of(numbers, numbers + 100'000, [](float number) { return number == 6; }),
            "the sum");
    });
}
