// The paths of tensors on devices: which one is taken, and that each gives the bits of the host. On
// the host fake, whose memory ranks of one process share.
#include <guozhuang/guozhuang.hpp>
#include <vector>

#include "backends/device/path_choice.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::backends;
using namespace guozhuang::test;
using base::DevicePath;

namespace {

constexpr Device fake{DeviceKind::fake, 0};

std::vector<RankDevice> on_hosts(const std::vector<int>& hosts) {
    std::vector<RankDevice> ranks;
    for (const int host : hosts) ranks.push_back({host, {}});
    return ranks;
}

std::string refusals(const std::vector<RankDevice>& ranks, DevicePath wanted) {
    return describe(choose_paths(ranks, wanted).refused);
}

/// Each of many chunks, some shared by tensors, with scales, and rows that differ.
void every_operation(Session& session, Report& report) {
    const auto among = Among(session).on(fake);
    const int ranks = session.size();
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max, ReduceOp::adasum})
        for (const std::int64_t count : {0, 1, ranks + 1, 4099, 200'003})
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
}

void same_bits_as_on_the_host(Session& session, Report& report) {
    for (const std::int64_t count : {5, 50'000, 5'000'000}) {
        auto host = contribution("either", session.rank(), DType::f32, {count});
        auto tensor = host;
        tensor.device = fake;
        allreduce(host.view(), {.op = ReduceOp::average});
        allreduce(tensor.view(), {.op = ReduceOp::average});
        report.expect(host.bytes == tensor.bytes, text_of("the bits of ", count));
    }
}

/// What is logged of the path that the world takes.
std::vector<std::string> path_taken(int hosts, const RankCase& body) {
    const Environment level("GUOZHUANG_LOG_LEVEL", "info");
    const LogCapture log;
    CHECK(problems_among(2, body, {.hosts = hosts}) == "");
    return log.with("the world: tensors on fake take the ");
}

}  // namespace

TEST_CASE("the direct path is taken where all ranks are on one host and not too many") {
    const auto one_host = on_hosts({3, 3, 3});
    CHECK(choose_paths(one_host, DevicePath::automatic).candidates ==
          std::vector{DevicePath::direct, DevicePath::staged});
    CHECK(refusals(one_host, DevicePath::automatic) == "");
    const auto two_hosts = on_hosts({0, 0, 1});
    CHECK(choose_paths(two_hosts, DevicePath::automatic).candidates ==
          std::vector{DevicePath::staged});
    CHECK(refusals(two_hosts, DevicePath::automatic) ==
          "not direct: ranks 0 and 2 of the set are on different hosts");
    CHECK(refusals(on_hosts(std::vector<int>(16, 0)), DevicePath::automatic) == "");
    CHECK(refusals(on_hosts(std::vector<int>(17, 0)), DevicePath::automatic) ==
          "not direct: it is for 16 ranks at most, and the set has 17");
}

TEST_CASE("a path that is asked for is the only candidate") {
    const auto one_host = on_hosts({0, 0});
    CHECK(choose_paths(one_host, DevicePath::staged).candidates == std::vector{DevicePath::staged});
    CHECK(refusals(one_host, DevicePath::staged) == "not direct: GUOZHUANG_DEVICE_PATH is staged");
    CHECK(choose_paths(on_hosts({0, 1}), DevicePath::direct).candidates.empty());
    CHECK(refusals(on_hosts({0, 1}), DevicePath::direct) ==
          "not direct: ranks 0 and 1 of the set are on different hosts; "
          "not staged: GUOZHUANG_DEVICE_PATH is direct");
}

TEST_CASE("every operation is right on every path, in many chunks") {
    const Environment bytes("GUOZHUANG_DEVICE_BYTES", "64K");
    for (const auto* path : {"direct", "staged"}) {
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        for (const int ranks : {1, 2, 3, 4, 7}) {
            INFO(path << " among " << ranks);
            CHECK(problems_among(ranks, every_operation) == "");
        }
    }
}

TEST_CASE("every path gives the bits of host tensors") {
    for (const auto* path : {"direct", "staged"}) {
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        for (const int ranks : {1, 2, 3, 5}) {
            INFO(path << " among " << ranks);
            CHECK(problems_among(ranks, same_bits_as_on_the_host) == "");
        }
    }
}

TEST_CASE("the log says which path is taken, and why no better one") {
    CHECK(path_taken(1, every_operation) ==
          std::vector<std::string>{"the world: tensors on fake take the direct path"});
    CHECK(path_taken(2, every_operation) ==
          std::vector<std::string>{"the world: tensors on fake take the staged path (not direct: "
                                   "ranks 0 and 1 of the set are on different hosts)"});
}

TEST_CASE("a path that is asked for and cannot be ends the job with the reason") {
    const Environment wanted("GUOZHUANG_DEVICE_PATH", "direct");
    const auto job = [](Session&, Report&) {
        std::vector<float> numbers(5, 1);
        allreduce(TensorView(numbers.data(), DType::f32, {5}, fake));
    };
    CHECK_THROWS_WITH(
        problems_among(2, job, {.hosts = 2}),
        "the world: no path for tensors on fake: not direct: ranks 0 and 1 of the set are on "
        "different hosts; not staged: GUOZHUANG_DEVICE_PATH is direct");
}
