#include "wire/group/shared_memory_group.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "support/fakes/inproc_ranks.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::wire;
using guozhuang::test::run_staging_ranks;

namespace {

/// On a rank's thread, where a CHECK cannot be.
void require(bool holds) {
    if (!holds) throw std::runtime_error("a rank does not see what the other has put in its room");
}

/// Two ranks show each other bytes, round for round, past their caches or not.
void show_each_other(bool streams) {
    run_staging_ranks(2, [&](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        std::vector<std::byte> mine(10'001);
        memory.begin();
        memory.set_streams(streams);
        for (std::uint64_t show = 1; show <= 20; ++show) {
            std::ranges::fill(
                mine, static_cast<std::byte>(show * 2 + static_cast<std::uint64_t>(memory.rank())));
            const auto round = memory.round();
            const auto room = [&](int peer) {
                return memory.room(peer, round).subspan(round % 2 * 64, mine.size());
            };
            require(memory.put(room(memory.rank()), mine) == mine.size());
            memory.publish(mine.size());
            require(memory.await(round));
            const int other = 1 - memory.rank();
            const auto wanted =
                static_cast<std::byte>(show * 2 + static_cast<std::uint64_t>(other));
            require(
                std::ranges::all_of(room(other), [&](std::byte byte) { return byte == wanted; }));
        }
    });
}

}  // namespace

TEST_CASE("what a rank puts in its room is there after the round, streamed or not") {
    CHECK_NOTHROW(show_each_other(false));
    CHECK_NOTHROW(show_each_other(true));
}

TEST_CASE("every rank reads the least of the costs that were told before the round") {
    run_staging_ranks(3, [](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        for (std::size_t turn = 0; turn < 30; ++turn) {
            memory.publish_cost(
                turn % 2, static_cast<float>((group.group_rank + static_cast<int>(turn)) % 3 + 5));
            const auto round = memory.round();
            memory.publish(0);
            memory.await(round);
            require(memory.least_cost(turn % 2) == 5);
        }
    });
}
