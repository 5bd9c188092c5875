#include "backends/device/device_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <utility>

#include "backends/device/direct_path.hpp"
#include "backends/device/lone_path.hpp"
#include "backends/device/staged_path.hpp"
#include "base/log.hpp"

namespace guozhuang::backends {

using base::DevicePath;

DeviceBackend::DeviceBackend(Dependencies dependencies)
    : of_(std::move(dependencies)),
      results_({.driver = of_.driver,
                .device = of_.device,
                .rank = of_.rank,
                .ranks = of_.ranks,
                .world_rank = of_.world_rank,
                .driving = of_.driving}) {}

void DeviceBackend::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    auto& path = path_for(bundle->bundle());
    path.enqueue(std::move(bundle), stream);
}

Path& DeviceBackend::path_for(const engine::Bundle& bundle) {
    if (chosen_ == nullptr) choose(bundle);
    return chosen_->supports(bundle) ? *chosen_ : staged();
}

/// The ranks try the candidates in the same order, and all of them fail or none.
void DeviceBackend::choose(const engine::Bundle& first) {
    if (of_.ranks == 1) {
        chosen_ = &keep(std::make_unique<LonePath>(of_.driver, results_));
        return;
    }
    const RankDevice own{of_.host, of_.driver->sharing().id_of(of_.device)};
    const auto exchange = exchange_for(first);
    auto [candidates, refused] = choose_paths(exchange.gather(own), of_.path);
    for (const auto path : candidates) {
        if (path == DevicePath::staged) {
            chosen_ = &staged();
            break;
        }
        std::string why_not;
        if (auto made = direct(exchange, why_not)) {
            chosen_ = &keep(std::move(made));
            break;
        }
        refused.push_back({path, std::move(why_not)});
    }
    const auto kind = name_of(first.device);
    if (chosen_ == nullptr)
        throw Error(ErrorCode::unavailable, fmt::format("{}: no path for tensors on {}: {}",
                                                        of_.set, kind, describe(refused)));
    if (of_.rank != 0) return;
    const auto reasons = describe(refused);
    base::log_info(fmt::format("{}: tensors on {} take the {} path{}", of_.set, kind,
                               chosen_ == staged_ ? "staged" : "direct",
                               reasons.empty() ? "" : fmt::format(" ({})", reasons)));
}

std::unique_ptr<Path> DeviceBackend::direct(const RankExchange& ranks, std::string& why_not) {
    arenas_ = std::make_unique<PeerArenas>(PeerArenas::Dependencies{.driver = of_.driver,
                                                                    .device = of_.device,
                                                                    .bytes = of_.arena_bytes,
                                                                    .ranks = ranks,
                                                                    .doorbell = of_.doorbell,
                                                                    .wait = of_.wait});
    const auto failure = arenas_->share();
    if (!failure) return std::make_unique<DirectPath>(of_.driver, *arenas_, results_);
    why_not = fmt::format("rank {}: {}", of_.world_rank(failure->rank), failure->cause);
    return nullptr;
}

Path& DeviceBackend::staged() {
    if (staged_ == nullptr)
        staged_ =
            &keep(std::make_unique<StagedPath>(StagedPath::Dependencies{.driver = of_.driver,
                                                                        .device = of_.device,
                                                                        .rank = of_.rank,
                                                                        .results = results_,
                                                                        .mover = of_.make_mover(),
                                                                        .doorbell = of_.doorbell,
                                                                        .wait = of_.wait,
                                                                        .owner = of_.owner}));
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
    return {of_.rank, of_.ranks, [this, gathering](std::span<const std::byte> own) {
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

void DeviceBackend::release() noexcept {
    const base::Lock lock(mutex_);
    is_released_ = true;
    for (const auto& path : paths_) path->release();
}

bool DeviceBackend::was_released() const noexcept {
    const base::Lock lock(mutex_);
    return std::ranges::any_of(paths_, [](const auto& path) { return path->was_released(); });
}

void DeviceBackend::stop() noexcept {
    const base::Lock lock(mutex_);
    for (const auto& path : paths_) path->stop();
}

}  // namespace guozhuang::backends
