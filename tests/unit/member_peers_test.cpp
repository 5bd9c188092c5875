#include "wire/member_peers.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/inproc_ranks.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::wire;
using guozhuang::test::run_inproc_ranks;

namespace {

constexpr Tag data{0, Lane::host_data, 0};

/// On a rank's thread, where a CHECK cannot be.
void require(bool holds) {
    if (!holds) throw std::runtime_error("a rank does not see what the other has put on its stage");
}

/// Two ranks show each other bytes, round for round, before each of which they expect an operation of so many; gives how many rounds more they took, and whether they streamed at last.
struct Shown {
    std::uint64_t rounds = 0;
    bool streamed = false;
};
Shown show_each_other(const base::WaitSettings& settings, std::size_t expected_bytes) {
    constexpr std::uint64_t shows = 20;
    Shown shown_by_first;
    run_inproc_ranks(
        2,
        [&](Transport& transport) {
            const std::vector<int> both{0, 1};
            MemberPeers peers({.transport = transport, .members = both, .position = transport.rank(), .tag = data}, transport.staging());
            std::vector<std::byte> mine(10'001);
            for (std::uint64_t show = 0; show < shows; ++show) {
                peers.expect(expected_bytes);
                std::ranges::fill(mine, static_cast<std::byte>(show * 2 + static_cast<std::uint64_t>(peers.rank())));
                const auto room = peers.round() % 2 * mine.size();
                require(peers.put(peers.stage(peers.rank()).subspan(room), mine) == mine.size());
                peers.publish(mine.size());
                peers.await();
                const int other = 1 - peers.rank();
                const auto wanted = static_cast<std::byte>(show * 2 + static_cast<std::uint64_t>(other));
                const auto shown = peers.stage(other).subspan(room, mine.size());
                require(std::ranges::all_of(shown, [&](std::byte byte) { return byte == wanted; }));
            }
            if (peers.rank() == 0) shown_by_first = {.rounds = peers.round() - shows, .streamed = peers.streams()};
        },
        settings);
    return shown_by_first;
}

}  // namespace

TEST_CASE("what a rank puts on its stage is there after the round, streamed or not") {
    constexpr base::WaitSettings crowded{.spin = 5us, .yields = true};
    const auto small = show_each_other(crowded, std::size_t{64} << 10), large = show_each_other(crowded, std::size_t{64} << 20);
    CHECK(small.rounds == 0);
    CHECK_FALSE(small.streamed);
    CHECK(large.rounds == 0);
    CHECK(large.streamed);
}

TEST_CASE("ranks with a core each look whether they share a cache at first, and again after some bytes") {
    const auto rounds_of_a_look = show_each_other({}, 1).rounds;
    CHECK(rounds_of_a_look > 0);
    CHECK(show_each_other({}, std::size_t{4} << 20).rounds == 5 * rounds_of_a_look);  // before the 1st, 5th, 9th ... time
}
