// The memory in which the ranks of a process set stage: that they have it, and have it in common.
#include "backends/host/staging_buffers.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "support/fakes/inproc_ranks.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using backends::SetStagingBuffers;
using guozhuang::test::run_inproc_ranks;

namespace {

/// On a rank's thread, where a CHECK cannot be.
void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

/// Returns when all ranks have called it: a token goes around twice.
void meet(wire::GroupWire& wire) {
    std::byte token{};
    const std::span<std::byte> one(&token, 1), none;
    const int size = wire.size(), next = (wire.rank() + 1) % size,
              before = (wire.rank() + size - 1) % size;
    for (int turn = 0; turn < 2; ++turn) {
        exchange(wire, none, next, wire.rank() > 0 ? one : none, before);
        exchange(wire, one, next, none, before);
        exchange(wire, none, next, wire.rank() == 0 ? one : none, before);
    }
}

/// Checks, on each rank of a job, the stages of a set: the world (context 0) or another.
void look_at_stages(wire::Transport& transport, std::uint16_t context) {
    std::vector<int> group_ranks(static_cast<std::size_t>(transport.size()));
    std::iota(group_ranks.begin(), group_ranks.end(), 0);
    const wire::Group group{.transport = transport,
                            .ranks = group_ranks,
                            .group_rank = transport.rank(),
                            .tag = {context, wire::Lane::host_data}};
    const topology::HostGrid grid(transport.topology().host_of, transport.rank());
    wire::GroupWire wire(group);
    const auto buffers = SetStagingBuffers::create_shared(wire, group);
    require(buffers.has_value(), "there is memory");
    const auto staging = buffers->staging();
    require(staging.progress.size() == grid.local().size(), "a place for each rank of the host");
    require(staging.room(0, 1).size() == wire::Staging::room_bytes(transport.stage_bytes()),
            "rooms of the size that there may be");
    const auto mine = staging.room(grid.local_rank(), 1);
    require(reinterpret_cast<std::uintptr_t>(mine.data()) % 64 == 0, "rooms begin at a cache line");
    mine.back() = static_cast<std::byte>(transport.rank() + 1);
    meet(wire);
    for (std::size_t i = 0; i < grid.local().size(); ++i)
        require(staging.room(static_cast<int>(i), 1).back() ==
                    static_cast<std::byte>(grid.local()[i] + 1),
                "what a neighbour has written");
    meet(wire);
}

}  // namespace

TEST_CASE("the ranks of each host have stages of their own, and see each other's") {
    for (const int hosts : {1, 2})
        for (const std::uint16_t context : {std::uint16_t{0}, std::uint16_t{1}})
            CHECK_NOTHROW(run_inproc_ranks(
                5, [&](wire::Transport& transport) { look_at_stages(transport, context); },
                std::nullopt, hosts));
}
