#include "backends/host/staging_buffers.hpp"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <span>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "collectives/hierarchical/hierarchical_allreduce.hpp"
#include "collectives/ring/ring_all_gather.hpp"
#include "collectives/staged/sections.hpp"
#include "wire/shm/share_together.hpp"

namespace guozhuang::backends {
namespace {

// A set's stage has at most this many bytes for each of its hosts, up to four hosts, since there
// may be many sets.
constexpr std::size_t most_set_stage_bytes = std::size_t{512} << 10;

/// A stage of a set other than the world, on this many hosts.
std::size_t set_stage_bytes(const wire::HostServices& host, int hosts) {
    return std::min(host.stage_bytes(),
                    most_set_stage_bytes * static_cast<std::size_t>(std::min(hosts, 4)));
}

std::size_t stage_bytes_of(const wire::Group& group, const topology::HostGrid& grid) {
    return is_the_first(group) ? group.transport.stage_bytes()
                               : set_stage_bytes(group.transport, grid.hosts());
}

bool on_one_host(const topology::Topology& topology, std::span<const int> ranks) {
    const auto host_of = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
    return std::ranges::all_of(ranks,
                               [&](int rank) { return host_of(rank) == host_of(ranks.front()); });
}

topology::HostGrid grid_of(const wire::Group& group) {
    return {group.transport.topology().host_of, group.ranks, group.transport.rank()};
}

/// Every rank's value, by group rank.
template <class T>
std::vector<T> gather(wire::GroupWire& wire, const T& own) {
    std::vector<T> all(static_cast<std::size_t>(wire.size()));
    all[static_cast<std::size_t>(wire.rank())] = own;
    std::vector<std::span<std::byte>> destinations;
    for (auto& each : all) destinations.push_back(std::as_writable_bytes(std::span(&each, 1)));
    ring::all_gather(wire, destinations);
    return all;
}

}  // namespace

bool is_the_world(const wire::Group& group) noexcept {
    return group.tag.context == 0;
}

bool is_the_first(const wire::Group& group) noexcept {
    return is_the_world(group) && group.tag.lane == wire::Lane::host_data;
}

bool can_stage(const wire::Transport& transport, std::span<const int> ranks) {
    return on_one_host(transport.topology(), ranks) &&
           staged::section_limit_bytes(wire::Staging::room_bytes(set_stage_bytes(transport, 1)),
                                       static_cast<int>(ranks.size())) > 0;
}

wire::Staging SetStagingBuffers::staging() const noexcept {
    return wire::Staging::in(file_.memory(), ranks_);
}

std::optional<SetStagingBuffers> SetStagingBuffers::create_shared(wire::GroupWire& wire,
                                                                  const wire::Group& group) {
    using Offer = wire::SharedFile::Offer;
    const auto grid = grid_of(group);
    const auto ranks = static_cast<int>(grid.local().size());
    const auto first = std::ranges::find(group.ranks, grid.local().front()) - group.ranks.begin();
    const auto stage_bytes = stage_bytes_of(group, grid);
    const auto bytes = wire::Staging::bytes_for(ranks, stage_bytes);
    wire::SharedFile file;
    const auto failure = wire::share_together(
        [&](const auto& own) { return gather(wire, own); },
        [&] {
            if (grid.local_rank() != 0) return Offer();
            file = wire::SharedFile::create(bytes);
            file.reserve(0, wire::Staging::stage_offset(ranks, 0, 0));
            wire::Staging::initialise(file.memory(), ranks);
            return file.offer();
        },
        [&](const std::vector<Offer>& offers) {
            if (grid.local_rank() != 0)
                file = wire::SharedFile::attach(offers[static_cast<std::size_t>(first)], bytes);
            file.reserve(wire::Staging::stage_offset(ranks, grid.local_rank(), stage_bytes),
                         stage_bytes);
        });
    if (!failure) {
        file.close_file();
        return SetStagingBuffers(std::move(file), ranks);
    }
    if (failure->rank == wire.rank())
        base::log_warning(fmt::format(
            "{}: no memory to stage in ({}): its data travels as messages",
            is_the_world(group) ? "the world"
                                : fmt::format("process set {}", fmt::join(group.ranks, ",")),
            failure->cause));
    return std::nullopt;
}

bool Hierarchy::fits(const wire::Group& group) {
    const auto grid = grid_of(group);
    return grid.hosts() > 1 && grid.columns() > 1 &&
           hierarchical::segment_limit_bytes(wire::Staging::room_bytes(stage_bytes_of(group, grid)),
                                             grid.columns(),
                                             grid.hosts()) >= hierarchical::least_segment_bytes;
}

bool Hierarchy::may_double(std::size_t bytes) {
    auto& group = local_.group();
    return grid_.is_even() && std::has_single_bit(grid_.local().size()) &&
           std::ranges::is_sorted(grid_.host_by_host()) &&
           bytes <= group.room(group.rank(), group.round()).size();
}

/// Messages across hosts use the group's own tag: each rank runs its bundles in one order, and
/// within a bundle its columns, so no two ranks mistake one for another.
Hierarchy::Hierarchy(const wire::Group& group, const wire::Staging& staging)
    : grid_(grid_of(group)), local_(group.subgroup(grid_.local(), grid_.local_rank()), staging) {
    const auto step = static_cast<int>(grid_.local().size());
    for (int column = grid_.local_rank(); column < grid_.columns(); column += step)
        columns_.push_back(grid_.column(column));
    if (columns_.empty()) columns_.push_back(grid_.column(0));
    for (const auto& ranks : columns_)
        across_.emplace_back(group.subgroup(ranks, grid_.cross_rank()));
}

}  // namespace guozhuang::backends
