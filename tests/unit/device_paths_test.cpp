// The paths of tensors on devices: which one is taken, and that each gives the bits of the host. On
// the host fake, whose memory ranks of one process share.
#include <atomic>
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backends/device/path_choice.hpp"
#include "support/cases/error_cases.hpp"
#include "support/cases/in_place_cases.hpp"
#include "support/cases/join_cases.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/fakes/aborted_paths.hpp"
#include "support/fakes/slow_stream.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/sanitizer.hpp"

using namespace guozhuang;
using namespace guozhuang::backends;
using namespace guozhuang::test;
using base::DevicePath;

namespace {

constexpr Device fake{DeviceKind::cuda, 0};

/// Ranks on these hosts, each with a device of its own, of which NCCL knows nothing.
std::vector<RankDevice> on_hosts(const std::vector<int>& hosts) {
    std::vector<RankDevice> ranks;
    for (const int host : hosts) {
        RankDevice rank{.host = host};
        rank.device[0] = static_cast<std::byte>(ranks.size());
        rank.set_nccl(false, "none here");
        ranks.push_back(rank);
    }
    return ranks;
}

std::vector<RankDevice> with_nccl(std::vector<RankDevice> ranks) {
    for (auto& rank : ranks) rank.set_nccl(true, "2.28.9");
    return ranks;
}

std::vector<DevicePath> candidates(const std::vector<RankDevice>& ranks,
                                   const PathConditions& conditions = {}) {
    return choose_paths(ranks, conditions).candidates;
}

std::string refusals(const std::vector<RankDevice>& ranks, const PathConditions& conditions = {}) {
    return describe(choose_paths(ranks, conditions).refused, conditions.wanted);
}

/// Each of many chunks, some shared by tensors, with scales, and rows that differ.
void every_operation(Session& session, Report& report) {
    const auto among = Among(session).on(fake);
    const int ranks = session.size();
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max, ReduceOp::adasum})
        for (const std::int64_t count : {0, 1, ranks + 1, 4099, under_sanitizer ? 50'003 : 200'003})
            start_allreduce(among, text_of("sum ", count, name_of(op)),
                            {DType::bf16, {count}, {op}})(report);
    start_allreduce(among, "scaled", {DType::f32, {70'001}, {ReduceOp::average, 0.5, 3}})(report);
    std::vector<Reduce> mixed;
    for (int i = 0; i < 20; ++i)
        mixed.push_back({i % 3 == 0 ? DType::f64 : DType::i8, {i * 997}, {ReduceOp::sum}});
    start_grouped_allreduce(among, "mixed", mixed)(report);
    for (int root = 0; root < ranks; ++root)
        start_broadcast(among, text_of("from ", root), DType::i16, {50'001}, root)(report);
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < ranks; ++rank) rows.push_back(rank * 3001);
    start_all_gather(among, "gathered", DType::f32, rows, {3})(report);
    start_all_to_all(among, "exchanged", DType::f64, Splits(rows.size(), rows), {2})(report);
    start_reduce_scatter(among, "scattered", {DType::f32, {30'001, 2}, {ReduceOp::sum}})(report);
    results_in_place(among, report);
    misplaced_blocks(among, report);
}

/// All of one type and op at once.
void every_type(Session& session, Report& report) {
    const auto among = Among(session).on(fake);
    for (const auto dtype : all_dtypes) {
        for (const auto op : all_reduce_ops) {
            if (!is_defined(op, dtype) || op == ReduceOp::adasum) continue;
            std::vector<Finish> started;
            for (const auto count : counts_for(session.size(), 9001))
                started.push_back(start_allreduce(among, label_of("typed", dtype, op, {count}),
                                                  {dtype, {count}, {op}}));
            for (const auto& finish : started) finish(report);
        }
    }
}

/// Two sets reduce and broadcast at the same time.
void two_sets(Session& session, Report& report, const std::vector<int>& one,
              const std::vector<int>& other) {
    std::vector<Finish> started;
    for (const auto& ranks : {one, other}) {
        const auto set = ProcessSet::create(ranks, &session);
        if (!set.contains(session.rank())) continue;
        const auto among = Among(set).on(fake);
        for (int i = 0; i < 10; ++i) {
            started.push_back(start_allreduce(among, text_of("sum ", i),
                                              {DType::i32, {20'011}, {ReduceOp::sum}}));
            started.push_back(
                start_broadcast(among, text_of("from ", i), DType::f32, {30'011}, i % set.size()));
        }
    }
    for (const auto& finish : started) finish(report);
}

/// All ranks but the first, and all but the last.
void overlapping_sets(Session& session, Report& report) {
    std::vector<int> first, last;
    for (int rank = 0; rank + 1 < session.size(); ++rank) {
        first.push_back(rank);
        last.push_back(rank + 1);
    }
    two_sets(session, report, first, last);
}

void same_bits_as_on_the_host(Session& session, Report& report) {
    for (const std::int64_t count : {5, 50'000, under_sanitizer ? 500'000 : 5'000'000}) {
        auto host = contribution("either", session.rank(), DType::f32, {count});
        auto tensor = host;
        tensor.device = fake;
        allreduce(host.view(), {.op = ReduceOp::average});
        allreduce(tensor.view(), {.op = ReduceOp::average});
        report.expect(host.bytes == tensor.bytes, text_of("the bits of ", count));
    }
}

void reduce_five(Session&, Report&) {
    std::vector<float> numbers(5, 1);
    allreduce(TensorView(numbers.data(), DType::f32, {5}, fake));
}

/// Reduces a tensor, and returns the messages that say which path the world takes.
std::vector<std::string> path_taken(int ranks, int hosts) {
    const Environment level("GUOZHUANG_LOG_LEVEL", "info");
    const LogCapture log;
    CHECK(problems_among(ranks, reduce_five, {.hosts = hosts}) == "");
    return log.with("the world: tensors on cuda take the ");
}

/// The first rank ends the job while the last one's stream is held up.
void abort_behind_held_stream(int ranks, int hosts) {
    constexpr std::size_t count = 100'000;
    const auto last = static_cast<std::size_t>(ranks - 1);
    std::vector<std::vector<float>> numbers(last + 1, std::vector<float>(count, 1));
    std::vector<Handle> handles(last + 1);
    std::atomic<int> enqueued{0}, released{0};
    bool have_gone_on = false;
    SlowStream held;  // it waits for the operation, and so outlives the session
    const auto job = [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        AllreduceOptions options;
        if (rank == last)
            options.stream = held.ref();
        else
            options.keep_alive = {nullptr, [&](void*) { ++released; }};  // by a stream's end
        handles[rank] =
            allreduce_async(TensorView(numbers[rank].data(), DType::f32, {count}, fake), options);
        handles[rank].wait_for(std::chrono::milliseconds(100));  // enqueued, and no further
        ++enqueued;
        while (enqueued < ranks) std::this_thread::yield();
        if (rank == 0) throw std::runtime_error("mine");
        (void)error_of([&] { handles[rank].wait(); });
        if (rank != last) return;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (released < ranks - 1 && std::chrono::steady_clock::now() < deadline)
            std::this_thread::yield();
        have_gone_on = released == ranks - 1;
        held.let_go();
    };
    CHECK_THROWS_WITH(run_ranks(ranks, job, {.hosts = hosts}), "mine");
    CHECK(have_gone_on);
    for (const auto& handle : handles) CHECK_THROWS_AS(handle.wait(), Error);
}

}  // namespace

TEST_CASE("NCCL is for the world, where every rank has a device of its own and the same NCCL") {
    const auto ranks = with_nccl(on_hosts({0, 0, 1}));
    CHECK(candidates(ranks) == std::vector{DevicePath::nccl, DevicePath::staged});
    CHECK(candidates(with_nccl(on_hosts({0, 0}))) ==
          std::vector{DevicePath::nccl, DevicePath::direct, DevicePath::ring, DevicePath::staged});
    CHECK(refusals(on_hosts({0, 0})) == "not nccl: rank 0 of the set: none here");
    auto sharing = with_nccl(on_hosts({0, 0, 0}));
    sharing[2].device = sharing[1].device;
    CHECK(refusals(sharing) == "not nccl: ranks 1 and 2 of the set share a device");
    auto elsewhere = ranks;
    elsewhere[2].device = elsewhere[1].device;  // of another host
    CHECK(candidates(elsewhere).front() == DevicePath::nccl);
    auto older = with_nccl(on_hosts({0, 0}));
    older[1].set_nccl(true, "2.27.3");
    CHECK(refusals(older) == "not nccl: rank 0 of the set has NCCL 2.28.9, and rank 1 has 2.27.3");
    CHECK(refusals(with_nccl(on_hosts({0, 0})), {.reproducible = true})
              .starts_with("not nccl: GUOZHUANG_REPRODUCIBLE is 1; "));
}

TEST_CASE("the direct path, or else the ring, is for ranks on one host, and not too many") {
    const std::string not_nccl = "not nccl: rank 0 of the set: none here";
    CHECK(candidates(on_hosts({3, 3, 3})) ==
          std::vector{DevicePath::direct, DevicePath::ring, DevicePath::staged});
    CHECK(refusals(on_hosts({3, 3, 3})) == not_nccl);
    CHECK(candidates(on_hosts({0, 0, 1})) == std::vector{DevicePath::staged});
    CHECK(refusals(on_hosts({0, 0, 1})) ==
          not_nccl +
              "; not direct: ranks 0 and 2 of the set are on different hosts"
              "; not ring: ranks 0 and 2 of the set are on different hosts");
    CHECK(refusals(on_hosts(std::vector<int>(16, 0))) == not_nccl);
    CHECK(refusals(on_hosts(std::vector<int>(17, 0))) ==
          not_nccl +
              "; not direct: it is for 16 ranks at most, and the set has 17"
              "; not ring: it is for 16 ranks at most, and the set has 17");
}

TEST_CASE("streams of ranks that are threads and share a device need queues that are not shared") {
    const auto sharing = [](int ranks, int queues) {
        auto all = on_hosts(std::vector<int>(static_cast<std::size_t>(ranks), 0));
        for (auto& rank : all) {
            rank.process = 7;
            rank.device = {};
            rank.queues = queues;
        }
        return all;
    };
    CHECK(why_no_path(sharing(2, 8)) ==
          "2 ranks of one process share a device, and their streams need 10 of its queues, of "
          "which CUDA_DEVICE_MAX_CONNECTIONS allows 8: set it before the program starts (32 is the "
          "most), or let ranks be processes");
    CHECK(why_no_path(sharing(1, 1)) == "");
    CHECK(why_no_path(sharing(8, 32)) == "");
    CHECK(why_no_path(sharing(10, 32)) != "");
    auto processes = sharing(8, 1), devices = sharing(8, 1);
    for (int rank = 0; rank < 8; ++rank) {
        processes[rank].process = static_cast<std::uint64_t>(rank);
        devices[rank].device[0] = static_cast<std::byte>(rank);
    }
    CHECK(why_no_path(processes) == "");
    CHECK(why_no_path(devices) == "");
}

TEST_CASE("the ring adds in an order of its own, so it is not reproducible") {
    const std::string reason =
        "not ring: GUOZHUANG_REPRODUCIBLE is 1, and its sums have an order of their own";
    CHECK(candidates(on_hosts({0, 0}), {.reproducible = true}) ==
          std::vector{DevicePath::direct, DevicePath::staged});
    CHECK(refusals(on_hosts({0, 0}), {.reproducible = true}) ==
          "not nccl: GUOZHUANG_REPRODUCIBLE is 1; " + reason);
    const PathConditions asked_for{.wanted = DevicePath::ring, .reproducible = true};
    CHECK(candidates(on_hosts({0, 0}), asked_for).empty());
    CHECK(refusals(on_hosts({0, 0}), asked_for).find(reason) != std::string::npos);
}

TEST_CASE("a path that is asked for is the only candidate") {
    const PathConditions staged{.wanted = DevicePath::staged}, direct{.wanted = DevicePath::direct},
        ring{.wanted = DevicePath::ring};
    CHECK(candidates(on_hosts({0, 0}), staged) == std::vector{DevicePath::staged});
    CHECK(refusals(on_hosts({0, 0}), staged) == "GUOZHUANG_DEVICE_PATH is staged");
    CHECK(candidates(on_hosts({0, 0}), ring) == std::vector{DevicePath::ring});
    CHECK(candidates(on_hosts({0, 1}), direct).empty());
    CHECK(refusals(on_hosts({0, 1}), direct) ==
          "GUOZHUANG_DEVICE_PATH is direct; "
          "not direct: ranks 0 and 1 of the set are on different hosts");
}

TEST_CASE("every operation is right on every path, in many chunks") {
    const Environment bytes("GUOZHUANG_DEVICE_BYTES", "65538");  // no whole lines in each half
    for (const auto* path : {"direct", "ring", "staged"}) {
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        for (const int ranks : rank_counts({1, 2, 3, 7})) {
            INFO(path << " among " << ranks);
            CHECK(problems_among(ranks, every_operation) == "");
        }
    }
}

TEST_CASE("every operation is right on several hosts, in many chunks") {
    const auto shapes = under_sanitizer ? std::vector{std::pair(2, 2)}
                                        : std::vector{std::pair(2, 3), std::pair(4, 2)};
    for (const auto& [hosts, ranks_of_each] : shapes) {
        INFO(hosts << " hosts of " << ranks_of_each);
        CHECK(problems_among(hosts * ranks_of_each, every_operation, {.hosts = hosts}) == "");
        CHECK(problems_among(hosts * ranks_of_each, every_type, {.hosts = hosts}) == "");
    }
}

TEST_CASE("ranks join while others reduce on several hosts") {
    CHECK(problems_among(4, uneven_steps_on_a_device, {.hosts = 2}) == "");
    CHECK(problems_among(6, uneven_steps_on_a_device, {.hosts = 3}) == "");
}

TEST_CASE("two sets that overlap reduce on two hosts, whatever their ranks are there") {
    const auto body = [](Session& session, Report& report) {
        two_sets(session, report, {0, 1, 3, 5}, {1, 2, 4, 5});
    };
    CHECK(problems_among(6, body, {.hosts = 2}) == "");
}

TEST_CASE("every type and op is reduced on the ring") {
    const Environment bytes("GUOZHUANG_DEVICE_BYTES", "64K"), path("GUOZHUANG_DEVICE_PATH", "ring");
    for (const int ranks : rank_counts({2, 3, 4, 7})) {
        INFO(ranks);
        CHECK(problems_among(ranks, every_type) == "");
    }
}

TEST_CASE("two sets that overlap have rings of their own") {
    const Environment bytes("GUOZHUANG_DEVICE_BYTES", "64K"), path("GUOZHUANG_DEVICE_PATH", "ring");
    for (const int ranks : rank_counts({3, 4})) {
        INFO(ranks);
        CHECK(problems_among(ranks, overlapping_sets) == "");
    }
}

TEST_CASE("the direct and the staged path give the bits of host tensors") {
    for (const auto* path : {"direct", "staged"}) {
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        for (const int ranks : rank_counts({1, 2, 3, 5})) {
            INFO(path << " among " << ranks);
            CHECK(problems_among(ranks, same_bits_as_on_the_host) == "");
        }
    }
}

TEST_CASE("an abort lets streams go on that wait for the stream of a rank that is held up") {
    const LogCapture log;
    for (const auto* path : aborted_paths) {
        INFO(path);
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        abort_behind_held_stream(3, 1);
    }
    INFO("staged on two hosts");
    const Environment wanted("GUOZHUANG_DEVICE_PATH", "staged");
    abort_behind_held_stream(4, 2);
}

TEST_CASE("the log says which path is taken, and why no better one") {
    const std::string not_nccl =
        "(not nccl: rank 0 of the set: NCCL cannot reach such a device (GUOZHUANG_NCCL=auto)";
    CHECK(path_taken(2, 1) ==
          std::vector{"the world: tensors on cuda take the direct path " + not_nccl + ")"});
    const auto elsewhere = [&](int other) {
        const auto hosts = text_of(": ranks 0 and ", other, " of the set are on different hosts");
        return not_nccl + "; not direct" + hosts + "; not ring" + hosts;
    };
    CHECK(path_taken(4, 2) ==
          std::vector{"the world: tensors on cuda take the staged path " + elsewhere(2) + ")"});
    CHECK(path_taken(2, 2) ==
          std::vector{"the world: tensors on cuda take the staged path " + elsewhere(1) + ")"});
}

TEST_CASE("a path that is asked for and cannot be ends the job with the reason") {
    const Environment wanted("GUOZHUANG_DEVICE_PATH", "direct");
    CHECK_THROWS_WITH(
        problems_among(2, reduce_five, {.hosts = 2}),
        Catch::Matchers::Contains(
            "the world: no path for tensors on cuda: GUOZHUANG_DEVICE_PATH is direct; "
            "not direct: ranks 0 and 1 of the set are on different hosts"));
}
