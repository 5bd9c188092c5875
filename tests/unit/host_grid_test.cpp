#include "topology/host_grid.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "backends/host/host_backend.hpp"
#include "support/fakes/forwarding_transport.hpp"
#include "support/fakes/inproc_ranks.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using guozhuang::topology::HostGrid;
using Ranks = std::vector<int>;

namespace {

/// A transport between given hosts, without shared memory. Counts messages to other hosts.
class SpreadTransport final : public test::ForwardingTransport {
public:
    SpreadTransport(std::unique_ptr<wire::Transport> inner, const Ranks& hosts,
                    std::atomic<int>& crossings)
        : ForwardingTransport(std::move(inner)),
          topology_{.rank = ForwardingTransport::topology().rank, .host_of = hosts},
          crossings_(crossings) {}
    std::size_t stage_bytes() const noexcept override { return 0; }
    const topology::Topology& topology() const noexcept override { return topology_; }
    Ticket send(int to, wire::Tag tag, std::span<const std::byte> bytes) override {
        const auto& host_of = topology_.host_of;
        if (host_of[static_cast<std::size_t>(to)] != host_of[static_cast<std::size_t>(rank())])
            ++crossings_;
        return ForwardingTransport::send(to, tag, bytes);
    }

private:
    const topology::Topology topology_;
    std::atomic<int>& crossings_;
};

/// The numbers of each rank after one bundle, and how many messages crossed between hosts.
struct Outcome {
    std::vector<std::vector<float>> numbers;
    int crossings = 0;
};
Outcome run_on(const Ranks& hosts, OperationKind operation, std::size_t count) {
    const int ranks = static_cast<int>(hosts.size());
    Ranks everybody(hosts.size());
    std::iota(everybody.begin(), everybody.end(), 0);
    Outcome outcome{.numbers = std::vector<std::vector<float>>(hosts.size())};
    std::atomic<int> crossings{0};
    wire::InprocHub hub(ranks);
    const auto run = [&](int rank) {
        SpreadTransport transport(hub.transport(rank), hosts, crossings);
        backends::HostBackend backend({.transport = transport,
                                       .ranks = everybody,
                                       .group_rank = rank,
                                       .tag = {0, wire::Lane::host_data}},
                                      std::make_shared<backends::ScratchStore>(),
                                      std::make_shared<trace::Timeline>());
        auto& own = outcome.numbers[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < count; ++i)
            own.push_back(1.0f / static_cast<float>(1 + rank + ranks * static_cast<int>(i % 7)));
        const TensorView tensor(own);
        Result result;
        const protocol::Description description{.operation = operation};
        backend.run({.description = &description,
                     .contributors = ranks,
                     .policy = {.small_bytes = 32 << 10, .segment_bytes = 256 << 10},
                     .entries = {{.tensor = tensor, .result = &result}}});
        if (operation == OperationKind::all_gather) {
            own.resize(result.bytes.size() / sizeof(float));
            std::memcpy(own.data(), result.bytes.data(), result.bytes.size());
        }
    };
    std::vector<std::thread> threads;
    for (const int rank : everybody) threads.emplace_back(run, rank);
    for (auto& thread : threads) thread.join();
    outcome.crossings = crossings;
    return outcome;
}

}  // namespace

TEST_CASE("a grid of all ranks") {
    const Ranks hosts{0, 0, 1, 1, 2, 2};
    const HostGrid grid(hosts, 3);
    CHECK(grid.local() == Ranks{2, 3});
    CHECK(grid.local_rank() == 1);
    CHECK(grid.columns() == 2);
    CHECK(grid.column(1) == Ranks{1, 3, 5});
    CHECK(grid.cross_rank() == 1);
    CHECK(grid.hosts() == 3);
    CHECK(grid.is_even());
}

TEST_CASE("a grid of ranks that take turns on the hosts") {
    const Ranks hosts{0, 1, 0, 1};
    const HostGrid grid(hosts, 2);
    CHECK(grid.local() == Ranks{0, 2});
    CHECK(grid.local_rank() == 1);
    CHECK(grid.column(1) == Ranks{2, 3});
    CHECK(grid.cross_rank() == 0);
}

TEST_CASE("a grid of some ranks goes by their positions and counts their hosts only") {
    const Ranks hosts{0, 0, 0, 1, 1, 2, 2}, group_ranks{6, 5, 2, 0};
    const HostGrid first(hosts, group_ranks, 6), last(hosts, group_ranks, 0);
    CHECK(first.local() == Ranks{6, 5});
    CHECK(first.column(0) == Ranks{6, 2});
    CHECK(first.cross_rank() == 0);
    CHECK(first.hosts() == 2);
    CHECK(last.local() == Ranks{2, 0});
    CHECK(last.local_rank() == 1);
    CHECK(last.column(1) == Ranks{5, 0});
    CHECK(last.cross_rank() == 1);
}

TEST_CASE("in a grid that is not even the smaller hosts count around") {
    const Ranks hosts{0, 1, 0, 1, 0, 2};
    for (const int rank : {0, 1, 2, 3, 4, 5}) {
        const HostGrid grid(hosts, rank);
        CHECK_FALSE(grid.is_even());
        CHECK(grid.columns() == 3);
        CHECK(grid.column(0) == Ranks{0, 1, 5});
        CHECK(grid.column(1) == Ranks{2, 3, 5});
        CHECK(grid.column(2) == Ranks{4, 1, 5});
        CHECK(grid.hosts() == 3);
        CHECK(grid.cross_rank() == hosts[static_cast<std::size_t>(rank)]);
    }
}

TEST_CASE("the ranks of the smallest host are in as many columns each") {
    CHECK(HostGrid(Ranks{0, 0, 0, 1, 1}, 0).columns() == 2);
    CHECK(HostGrid(Ranks{0, 1, 1, 1, 1, 1, 0}, 0).columns() == 4);
    CHECK(HostGrid(Ranks{0, 1, 1, 1, 1, 1, 0}, 0).column(3) == Ranks{6, 4});
    const HostGrid between(Ranks{0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2}, 0);
    CHECK(between.columns() == 4);
    CHECK_FALSE(between.is_even());
}

TEST_CASE("one rank, or one host, is a grid too") {
    CHECK(HostGrid(Ranks{0}, 0).column(0) == Ranks{0});
    const HostGrid one(Ranks{0, 0, 0}, 1);
    CHECK(one.is_even());
    CHECK(one.local() == Ranks{0, 1, 2});
    CHECK(one.column(1) == Ranks{1});
}

TEST_CASE("ranks that are threads take each other for ranks of several hosts") {
    std::vector<Ranks> hosts(5);
    guozhuang::test::run_inproc_ranks(
        5,
        [&](guozhuang::wire::Transport& transport) {
            hosts[static_cast<std::size_t>(transport.rank())] = transport.topology().host_of;
        },
        std::nullopt, 2);
    CHECK(hosts == std::vector<Ranks>(5, {0, 0, 0, 1, 1}));
}

TEST_CASE("around a ring the ranks of a host are neighbours") {
    const Ranks alternating{0, 1, 0, 1, 0}, group_ranks{4, 3, 1, 0};
    CHECK(HostGrid(alternating, 3).host_by_host() == Ranks{0, 2, 4, 1, 3});
    CHECK(HostGrid(alternating, 3).ring_rank() == 4);
    CHECK(HostGrid(alternating, 2).ring_rank() == 1);
    CHECK(HostGrid(alternating, group_ranks, 0).host_by_host() == Ranks{4, 0, 3, 1});
    CHECK(HostGrid(alternating, group_ranks, 0).ring_rank() == 1);
    CHECK(HostGrid(Ranks{0, 0, 0, 1, 1}, 4).host_by_host() == Ranks{0, 1, 2, 3, 4});
}

TEST_CASE(
    "a ring crosses from host to host as often as there are hosts, whatever the ranks' numbers") {
    constexpr std::size_t count = 20'000;  // one chunk
    const auto [hosts, host_count] =
        GENERATE(std::pair(Ranks{0, 1, 0, 1, 0}, 2), std::pair(Ranks{0, 1, 2, 0, 1, 0, 0}, 3));
    const int ranks = static_cast<int>(hosts.size());
    const auto sums = run_on(hosts, OperationKind::allreduce, count);
    // Every link carries as many messages as there are hops.
    CHECK(sums.crossings == 2 * (ranks - 1) * host_count);
    CHECK(std::ranges::all_of(
        sums.numbers, [&](const auto& numbers) { return numbers == sums.numbers.front(); }));
    CHECK(run_on(hosts, OperationKind::allreduce, count).numbers == sums.numbers);
    for (std::size_t i = 0; i < count; i += 501) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank)
            sum += 1.0 / (1 + rank + ranks * static_cast<int>(i % 7));
        CHECK(std::abs(sums.numbers.front()[i] - sum) <= 1e-5 * sum);
    }

    const auto gathered = run_on(hosts, OperationKind::all_gather, count);
    // The numbers of rows travel, then the rows.
    CHECK(gathered.crossings == 2 * (ranks - 1) * host_count);
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
        CHECK(gathered.numbers[rank] == gathered.numbers.front());
        CHECK(gathered.numbers.front()[rank * count] == 1.0f / static_cast<float>(1 + rank));
    }
}

TEST_CASE("a log that brings too many or too few bytes is refused") {
    wire::InprocHub hub(1);
    const auto transport = hub.transport(0);
    backends::HostBackend backend({.transport = *transport,
                                   .ranks = Ranks{0},
                                   .group_rank = 0,
                                   .tag = {0, wire::Lane::host_data}},
                                  std::make_shared<backends::ScratchStore>(),
                                  std::make_shared<trace::Timeline>());
    float number = 1;
    const float contributed[2] = {7, 8};
    const TensorView tensor(number);
    const protocol::Description description;
    engine::Bundle bundle{.description = &description,
                          .policy = {},
                          .contributions = std::as_bytes(std::span(contributed)),
                          .entries = {{.tensor = tensor}}};
    CHECK_THROWS_AS(backend.run(bundle), Error);
    CHECK(number == 1);
    bundle.contributions = bundle.contributions.first(sizeof number);
    backend.run(bundle);
    CHECK(number == 7);
    bundle.entries.clear();
    CHECK_THROWS_AS(backend.run(bundle), Error);
}
