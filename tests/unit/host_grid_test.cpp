#include "wire/host_grid.hpp"

#include "support/catch.hpp"
#include "support/inproc_ranks.hpp"

using guozhuang::wire::HostGrid;
using Ranks = std::vector<int>;

TEST_CASE("a grid of all ranks") {
    const Ranks hosts{0, 0, 1, 1, 2, 2};
    const HostGrid grid(hosts, 3);
    CHECK(grid.local() == Ranks{2, 3});
    CHECK(grid.local_rank() == 1);
    CHECK(grid.across() == Ranks{1, 3, 5});
    CHECK(grid.cross_rank() == 1);
    CHECK(grid.hosts() == 3);
    CHECK(grid.is_even());
}

TEST_CASE("a grid of ranks that take turns on the hosts") {
    const Ranks hosts{0, 1, 0, 1};
    const HostGrid grid(hosts, 2);
    CHECK(grid.local() == Ranks{0, 2});
    CHECK(grid.local_rank() == 1);
    CHECK(grid.across() == Ranks{2, 3});
    CHECK(grid.cross_rank() == 0);
}

TEST_CASE("a grid of some ranks goes by their positions and counts their hosts only") {
    const Ranks hosts{0, 0, 0, 1, 1, 2, 2}, members{6, 5, 2, 0};
    const HostGrid first(hosts, members, 6), last(hosts, members, 0);
    CHECK(first.local() == Ranks{6, 5});
    CHECK(first.across() == Ranks{6, 2});
    CHECK(first.cross_rank() == 0);
    CHECK(first.hosts() == 2);
    CHECK(last.local() == Ranks{2, 0});
    CHECK(last.local_rank() == 1);
    CHECK(last.across() == Ranks{5, 0});
    CHECK(last.cross_rank() == 1);
}

TEST_CASE("a grid that is not even has no columns") {
    const Ranks hosts{0, 0, 1};
    for (const int rank : {0, 1, 2}) {
        const HostGrid grid(hosts, rank);
        CHECK_FALSE(grid.is_even());
        CHECK(grid.across().empty());
        CHECK(grid.hosts() == 2);
        CHECK(grid.cross_rank() == (rank == 2 ? 1 : 0));
    }
}

TEST_CASE("one rank, or one host, is a grid too") {
    CHECK(HostGrid(Ranks{0}, 0).across() == Ranks{0});
    const HostGrid one(Ranks{0, 0, 0}, 1);
    CHECK(one.is_even());
    CHECK(one.local() == Ranks{0, 1, 2});
    CHECK(one.across() == Ranks{1});
}

TEST_CASE("ranks that are threads take each other for ranks of several hosts, each with stages of its own") {
    std::vector<std::size_t> stages(5);
    std::vector<Ranks> hosts(5);
    guozhuang::test::run_inproc_ranks(
        5,
        [&](guozhuang::wire::Transport& transport) {
            const auto self = static_cast<std::size_t>(transport.rank());
            hosts[self] = transport.hosts();
            stages[self] = transport.staging().progress.size();
        },
        std::nullopt, 2);
    CHECK(hosts == std::vector<Ranks>(5, {0, 0, 0, 1, 1}));
    CHECK(stages == std::vector<std::size_t>{3, 3, 3, 2, 2});
    guozhuang::wire::InprocHub hub(4, std::nullopt, 2);
    const auto first = hub.transport(0), second = hub.transport(1), third = hub.transport(2);
    CHECK(first->staging().stage(1).data() == second->staging().stage(1).data());
    CHECK(first->staging().stage(1).data() + first->staging().stage(1).size() == third->staging().stage(0).data());
}
