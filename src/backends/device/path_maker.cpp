#include "backends/device/path_maker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <guozhuang/error.hpp>
#include <numeric>
#include <utility>

#include "backends/device/arena_path.hpp"
#include "backends/device/lone_path.hpp"
#include "backends/device/nccl_path.hpp"
#include "backends/device/staged_path.hpp"
#include "collectives/ring/neighbours.hpp"
#include "device/find_nccl.hpp"

namespace guozhuang::backends {

using base::DevicePath;

namespace {

std::vector<int> all_of(int ranks) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

}  // namespace

PathMaker::PathMaker(Dependencies dependencies, const Paths& paths)
    : deps_(std::move(dependencies)),
      paths_(paths),
      results_({.driver = deps_.driver,
                .device = deps_.device,
                .rank = rank(),
                .ranks = ranks(),
                .world_rank = [this](int rank) { return world_rank(rank); },
                .driving = deps_.driving}) {}

RankDevice PathMaker::own_device(const PathConditions& conditions) {
    const auto& transport = deps_.group.transport;
    RankDevice own{.host = transport.topology().host_of[static_cast<std::size_t>(transport.rank())],
                   .process = device::own_process(),
                   .device = deps_.driver->sharing().id_of(deps_.device),
                   .queues = cuda_queues()};
    if (!may_be_nccl(conditions)) return own;  // and does not load NCCL
    try {
        const auto [nccl, reason] = device::find_nccl(*deps_.driver, deps_.nccl);
        nccl_ = nccl;
        const auto version = nccl != nullptr ? nccl->version() : reason;
        own.set_nccl(nccl != nullptr,
                     nccl != nullptr ? version.substr(0, version.find(' ')) : reason);
    } catch (const Error& error) {
        own.set_nccl(false, error.what());
    }
    return own;
}

device::OrReason<std::unique_ptr<Path>> PathMaker::try_to_make(DevicePath path,
                                                               const RankExchange& exchange) {
    switch (path) {
        case DevicePath::nccl: return nccl(exchange);
        case DevicePath::direct: return over_arenas<DirectWay>(exchange, all_of(ranks()), true);
        case DevicePath::ring:
            return over_arenas<RingWay>(exchange, {ring::left_of(rank(), ranks()), rank()}, false);
        default: {
            auto staged = make_staged();
            // As with the other paths: when the first rank has its path, all have finished
            // allocating.
            exchange.gather(std::byte{});
            return {.value = std::move(staged), .reason = {}};
        }
    }
}

device::OrReason<std::unique_ptr<Path>> PathMaker::nccl(const RankExchange& exchange) {
    auto path =
        std::make_unique<NcclPath>(NcclPath::Dependencies{.driver = deps_.driver,
                                                          .nccl = *nccl_,
                                                          .device = deps_.device,
                                                          .group = deps_.group,
                                                          .order = deps_.order,
                                                          .results = results_,
                                                          .connect_limit = deps_.connect_limit,
                                                          .owner = deps_.owner});
    if (const auto failure = path->connect(exchange)) return refused(*failure);
    return {.value = std::move(path), .reason = {}};
}

template <class Way>
device::OrReason<std::unique_ptr<Path>> PathMaker::over_arenas(const RankExchange& exchange,
                                                               std::vector<int> reached,
                                                               bool writes) {
    auto& transport = deps_.group.transport;
    const auto arenas = arenas_.emplace_back(
        std::make_shared<PeerArenas>(PeerArenas::Dependencies{.driver = deps_.driver,
                                                              .device = deps_.device,
                                                              .bytes = deps_.arena_bytes,
                                                              .ranks = exchange,
                                                              .reached = std::move(reached),
                                                              .writes = writes,
                                                              .doorbell = transport.doorbell(),
                                                              .wait = transport.wait_settings()}));
    if (const auto failure = arenas->share()) return refused(*failure);
    return {.value = std::make_unique<ArenaPath<Way>>(deps_.driver, arenas, results_),
            .reason = {}};
}

device::OrReason<std::unique_ptr<Path>> PathMaker::refused(
    const wire::SharingFailure& failure) const {
    return {.value = nullptr,
            .reason = fmt::format("rank {}: {}", world_rank(failure.rank), failure.cause)};
}

std::unique_ptr<Path> PathMaker::make_lone() const {
    return std::make_unique<LonePath>(deps_.driver, results_);
}

std::unique_ptr<Path> PathMaker::make_staged() {
    return std::make_unique<StagedPath>(
        StagedPath::Dependencies{.driver = deps_.driver,
                                 .device = deps_.device,
                                 .rank = rank(),
                                 .results = results_,
                                 .mover = mover(),
                                 .backend = moved_among(deps_.group)});
}

/// All paths share one mover, so that messages of all bundles are in one order and can share a tag.
HostMover& PathMaker::mover() {
    auto& transport = deps_.group.transport;
    if (!mover_)
        mover_ =
            std::make_unique<HostMover>(HostMover::Dependencies{.driver = deps_.driver,
                                                                .device = deps_.device,
                                                                .doorbell = transport.doorbell(),
                                                                .wait = transport.wait_settings(),
                                                                .paths = paths_,
                                                                .owner = deps_.owner});
    return *mover_;
}

/// For the mover's thread, which does not drive.
std::unique_ptr<engine::Backend> PathMaker::moved_among(wire::Group group) const {
    group.pump = nullptr;
    return deps_.make_host_backend(group);
}

}  // namespace guozhuang::backends
