#include "backends/device/device_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "backends/device/direct_path.hpp"
#include "backends/device/hierarchical_path.hpp"
#include "backends/device/lone_path.hpp"
#include "backends/device/nccl_path.hpp"
#include "backends/device/ring_path.hpp"
#include "backends/device/staged_path.hpp"
#include "base/log.hpp"
#include "collectives/ring/all_gather.hpp"
#include "collectives/ring/neighbours.hpp"
#include "wire/group/group_wire.hpp"

namespace guozhuang::backends {

using base::DevicePath;

namespace {

std::vector<int> all_of(int ranks) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

}  // namespace

DeviceBackend::DeviceBackend(Dependencies dependencies)
    : of_(std::move(dependencies)),
      grid_(of_.group.transport.topology().host_of, of_.group.ranks, of_.group.transport.rank()),
      results_({.driver = of_.driver,
                .device = of_.device,
                .rank = rank(),
                .ranks = ranks(),
                .world_rank = [this](int rank) { return world_rank(rank); },
                .driving = of_.driving}) {}

/// The path is chosen before the bundle's turn, so that other sets' bundles need not wait for that.
void DeviceBackend::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    auto& path = path_for(bundle->bundle());
    std::optional<LaunchTurn> turn;
    if (ranks() > 1 && of_.order.concerns(of_.group.tag.context))
        turn.emplace(of_.order, exchange_for(bundle->bundle()), of_.group);
    path.enqueue(std::move(bundle), stream);
}

Path& DeviceBackend::path_for(const engine::Bundle& bundle) {
    if (chosen_ == nullptr) choose(bundle);
    return chosen_->supports(bundle) ? *chosen_ : staged();
}

/// The ranks try the candidates in the same order, and all of them fail or none.
void DeviceBackend::choose(const engine::Bundle& first) {
    if (ranks() == 1) {
        chosen_ = &keep(std::make_unique<LonePath>(of_.driver, results_));
        return of_.report("none: there is one rank");
    }
    const auto exchange = exchange_for(first);
    auto [candidates, refused] = choose_paths(exchange.gather(own_device()), of_.conditions);
    const auto kind = name_of(first.device);
    auto level = LogLevel::info;
    for (const auto path : candidates) {
        std::string why_not;
        auto made = make(path, exchange, why_not);
        if (!made) {
            refused.push_back({path, std::move(why_not)});
            level = LogLevel::warning;  // it should have been possible
            continue;
        }
        chosen_ = &keep(std::move(made));
        if (path == DevicePath::staged) staged_ = chosen_;
        std::erase_if(refused, [&](const RefusedPath& other) { return other.path > path; });
        const auto reasons = refused.empty() ? "" : fmt::format(" ({})", describe(refused));
        of_.report(fmt::format("{}{}", name_of(path), reasons));
        if (rank() == 0)
            base::log(level, "{}: tensors on {} take the {} path{}", of_.set, kind, name_of(path),
                      reasons);
        return;
    }
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: no path for tensors on {}: {}", of_.set, kind, describe(refused)));
}

RankDevice DeviceBackend::own_device() {
    const auto& transport = of_.group.transport;
    RankDevice own{.host = transport.topology().host_of[static_cast<std::size_t>(transport.rank())],
                   .device = of_.driver->sharing().id_of(of_.device)};
    if (!may_be_nccl(of_.conditions)) return own;  // so it is not loaded
    try {
        const auto [nccl, reason] = of_.driver->nccl(of_.nccl);
        nccl_ = nccl;
        const auto version = nccl != nullptr ? nccl->version() : reason;
        own.set_nccl(nccl != nullptr,
                     nccl != nullptr ? version.substr(0, version.find(' ')) : reason);
    } catch (const Error& error) {
        own.set_nccl(false, error.what());
    }
    return own;
}

/// Null on all ranks, with the reason, if one of them cannot take it.
std::unique_ptr<Path> DeviceBackend::make(DevicePath path, const RankExchange& exchange,
                                          std::string& why_not) {
    switch (path) {
        case DevicePath::nccl: return nccl(exchange, why_not);
        case DevicePath::direct: return direct(exchange, why_not);
        case DevicePath::ring: return ring(exchange, why_not);
        case DevicePath::hierarchical: return hierarchical(exchange, why_not);
        default: return make_staged();
    }
}

std::unique_ptr<Path> DeviceBackend::nccl(const RankExchange& exchange, std::string& why_not) {
    auto path =
        std::make_unique<NcclPath>(NcclPath::Dependencies{.driver = of_.driver,
                                                          .nccl = *nccl_,
                                                          .device = of_.device,
                                                          .group = of_.group,
                                                          .order = of_.order,
                                                          .results = results_,
                                                          .connect_limit = of_.connect_limit,
                                                          .owner = of_.owner});
    const auto failure = path->connect(exchange);
    if (!failure) return path;
    why_not = text_of(*failure);
    return nullptr;
}

std::unique_ptr<Path> DeviceBackend::direct(const RankExchange& exchange, std::string& why_not) {
    auto* arenas = share_arenas(exchange, all_of(ranks()), why_not);
    return arenas ? std::make_unique<DirectPath>(of_.driver, *arenas, results_) : nullptr;
}

std::unique_ptr<Path> DeviceBackend::ring(const RankExchange& exchange, std::string& why_not) {
    auto* arenas = share_arenas(exchange, {ring::left_of(rank(), ranks()), rank()}, why_not);
    return arenas ? std::make_unique<RingPath>(of_.driver, *arenas, results_) : nullptr;
}

/// The ranks of each host share arenas; if those of one host cannot, none does.
std::unique_ptr<Path> DeviceBackend::hierarchical(const RankExchange& exchange,
                                                  std::string& why_not) {
    const auto local = exchange_on_host();
    const auto bytes = 2 * HierarchicalPath::most_share_bytes * grid_.local().size();
    auto& arenas = make_arenas(local, std::min(of_.arena_bytes, bytes), all_of(local.ranks));
    std::unique_ptr<Path> path;
    const auto share = [&] {
        const auto failure = arenas.share();
        if (failure && failure->own) std::rethrow_exception(failure->own);
        return std::byte{};
    };
    const auto make_path = [&](const auto&) {
        path = std::make_unique<HierarchicalPath>(HierarchicalPath::Dependencies{
            .driver = of_.driver,
            .device = of_.device,
            .arenas = arenas,
            .mover = mover(),
            .across = moved_among(of_.group.subgroup(grid_.across(), grid_.cross_rank()))});
    };
    const auto failure = wire::share_together([&](const auto& own) { return exchange.gather(own); },
                                              share, make_path);
    if (!failure) return path;
    why_not = text_of(*failure);
    return nullptr;
}

PeerArenas& DeviceBackend::make_arenas(const RankExchange& exchange, std::size_t bytes,
                                       std::vector<int> reached) {
    auto& transport = of_.group.transport;
    return *arenas_.emplace_back(
        std::make_unique<PeerArenas>(PeerArenas::Dependencies{.driver = of_.driver,
                                                              .device = of_.device,
                                                              .bytes = bytes,
                                                              .ranks = exchange,
                                                              .reached = std::move(reached),
                                                              .doorbell = transport.doorbell(),
                                                              .wait = transport.wait_settings()}));
}

/// Null on all ranks, with the reason, if one of them does not reach what it is to reach.
PeerArenas* DeviceBackend::share_arenas(const RankExchange& exchange, std::vector<int> reached,
                                        std::string& why_not) {
    auto& arenas = make_arenas(exchange, of_.arena_bytes, std::move(reached));
    const auto failure = arenas.share();
    if (!failure) return &arenas;
    why_not = text_of(*failure);
    return nullptr;
}

std::string DeviceBackend::text_of(const wire::SharingFailure& failure) const {
    return fmt::format("rank {}: {}", world_rank(failure.rank), failure.cause);
}

std::unique_ptr<Path> DeviceBackend::make_staged() {
    return std::make_unique<StagedPath>(
        StagedPath::Dependencies{.driver = of_.driver,
                                 .device = of_.device,
                                 .rank = rank(),
                                 .results = results_,
                                 .mover = mover(),
                                 .backend = moved_among(of_.group)});
}

/// One for all paths: so messages of all bundles come in one order, and can have one tag.
HostMover& DeviceBackend::mover() {
    auto& transport = of_.group.transport;
    if (!mover_)
        mover_ = std::make_unique<HostMover>(
            HostMover::Dependencies{.driver = of_.driver,
                                    .device = of_.device,
                                    .doorbell = transport.doorbell(),
                                    .wait = transport.wait_settings(),
                                    .was_released = [this] { return was_released(); },
                                    .owner = of_.owner});
    return *mover_;
}

/// By the mover's thread, which does not drive.
std::unique_ptr<engine::Backend> DeviceBackend::moved_among(wire::Group group) const {
    group.pump = nullptr;
    return of_.make_host_backend(group);
}

Path& DeviceBackend::staged() {
    if (staged_ == nullptr) staged_ = &keep(make_staged());
    return *staged_;
}

Path& DeviceBackend::keep(std::unique_ptr<Path> path) {
    const base::Lock lock(mutex_);
    if (is_released_) path->release();
    return *paths_.emplace_back(std::move(path));
}

/// By messages of the host, with the policy of the bundle.
RankExchange DeviceBackend::exchange_for(const engine::Bundle& bundle) const {
    auto gathering = on_host(bundle);
    gathering.operation = protocol::OperationKind::all_gather;
    return {rank(), ranks(), [this, gathering](std::span<const std::byte> own) {
                std::vector<std::byte> bytes(own.begin(), own.end());
                const TensorView tensor(bytes.data(), DType::u8,
                                        {static_cast<std::int64_t>(bytes.size())});
                Result result;
                auto bundle_of_own = gathering;
                bundle_of_own.entries.push_back({.tensor = tensor, .result = &result});
                of_.driving.run(bundle_of_own);
                return std::move(result.bytes);
            }};
}

/// Among the ranks on this host alone: hosts may fail to share at different points.
RankExchange DeviceBackend::exchange_on_host() const {
    const auto ranks = static_cast<int>(grid_.local().size());
    return {grid_.local_rank(), ranks, [this, ranks](std::span<const std::byte> own) {
                wire::GroupWire wire(of_.group.subgroup(grid_.local(), grid_.local_rank()));
                std::vector<std::byte> all(own.size() * static_cast<std::size_t>(ranks));
                std::vector<std::span<std::byte>> blocks;
                for (int rank = 0; rank < ranks; ++rank)
                    blocks.push_back(std::span(all).subspan(
                        static_cast<std::size_t>(rank) * own.size(), own.size()));
                std::ranges::copy(own, blocks[static_cast<std::size_t>(wire.rank())].begin());
                ring::all_gather(wire, blocks);
                return all;
            }};
}

void DeviceBackend::release() noexcept {
    const base::Lock lock(mutex_);
    is_released_ = true;
    for (const auto& path : paths_) path->release();
}

bool DeviceBackend::was_released() const noexcept {
    const base::Lock lock(mutex_);
    return std::ranges::any_of(paths_, [](const auto& path) { return path->was_released(); });
}

/// Without the lock, which whoever looks at the streams takes: a path may take a while.
void DeviceBackend::stop() noexcept {
    std::vector<Path*> paths;
    {
        const base::Lock lock(mutex_);
        for (const auto& path : paths_) paths.push_back(path.get());
    }
    for (auto* path : paths) path->stop();
}

}  // namespace guozhuang::backends
