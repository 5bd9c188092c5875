#include "backends/device/device_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "backends/device/launch_order.hpp"
#include "base/log.hpp"
#include "device/reduction.hpp"

namespace guozhuang::backends {

/// Chooses the path before the bundle's turn, so that other sets' bundles need not wait for the
/// choice. A rank that allocates alone, and so may wait for its device, does so in the bundle's
/// turn, even if it has joined: earlier, bundles of other sets that were launched here might wait
/// for ranks whose turn waits for this rank.
void DeviceBackend::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    if (chosen_ == nullptr) chosen_ = &choose(bundle->bundle());
    std::optional<LaunchTurn> turn;
    auto& order = deps_.maker.order;
    if (!is_of_one_rank() && order.concerns(group().tag.context))
        turn.emplace(order, exchange_with(bundle->bundle()), group());
    bundle->make_contributions(deps_.maker.driver, stream);
    auto& path = path_for(bundle->bundle());
    path.enqueue(std::move(bundle), stream);
}

Path& DeviceBackend::path_for(const engine::Bundle& bundle) {
    // The host sums integer averages in i64.
    const bool is_for_host =
        !is_of_one_rank() && std::ranges::any_of(bundle.entries, [&](const auto& entry) {
            return device::averages_in_i64(bundle.description->op, entry.tensor.dtype);
        });
    if (!is_for_host && chosen_->supports(bundle)) return *chosen_;
    if (staged_ == nullptr) staged_ = &paths_.keep(maker_.make_staged());
    return *staged_;
}

/// Says how much device memory a path has taken, including NCCL's. It compares free memory before
/// and after, so the number is wrong if others have allocated or freed memory meanwhile.
std::string DeviceBackend::describe_use(std::optional<std::size_t> free_before) const {
    const auto free = deps_.maker.driver->free_memory(deps_.maker.device);
    if (!free_before || !free || *free >= *free_before) return {};
    constexpr auto mib = std::size_t{1} << 20;
    return fmt::format(", with about {} MiB of the GPU's memory",
                       (*free_before - *free + mib - 1) / mib);
}

/// The ranks try the candidates in the same order, and each candidate fails on all ranks or on
/// none.
Path& DeviceBackend::choose(const engine::Bundle& first) {
    if (is_of_one_rank()) {
        deps_.report("none: there is one rank");
        return paths_.keep(maker_.make_lone());
    }
    const auto exchange = exchange_with(first);
    const auto devices = exchange.gather(maker_.own_device(deps_.conditions));
    auto why_none = why_no_path(devices);
    auto [candidates, refused] =
        why_none.empty() ? choose_paths(devices, deps_.conditions) : PathChoice{};
    const auto kind = name_of(first.description->device);
    auto level = LogLevel::info;
    for (const auto candidate : candidates) {
        const auto free_before = deps_.maker.driver->free_memory(deps_.maker.device);
        auto [path, reason] = maker_.try_to_make(candidate, exchange);
        if (!path) {
            refused.push_back({candidate, std::move(reason)});
            level = LogLevel::warning;  // it should have been possible
            continue;
        }
        std::erase_if(refused, [&](const RefusedPath& other) { return other.path > candidate; });
        const auto why = describe(refused, deps_.conditions.wanted);
        const auto reasons = why.empty() ? "" : fmt::format(" ({})", why);
        deps_.report(fmt::format("{}{}{}", name_of(candidate), describe_use(free_before), reasons));
        if (group().group_rank == 0)
            base::log(level, "{}: tensors on {} take the {} path{}", deps_.set, kind,
                      name_of(candidate), reasons);
        return paths_.keep(std::move(path));
    }
    if (why_none.empty()) why_none = describe(refused, deps_.conditions.wanted);
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: no path for tensors on {}: {}", deps_.set, kind, why_none));
}

}  // namespace guozhuang::backends
