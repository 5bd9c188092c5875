#pragma once

#include <atomic>
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "api/process_set_state.hpp"
#include "backends/device/nccl_path.hpp"
#include "backends/device/staged_path.hpp"
#include "backends/host/host_backend.hpp"
#include "engine/completions.hpp"
#include "engine/stream_executor.hpp"

namespace guozhuang::test {

/// Bundles that NCCL can do go by NCCL, the others by way of the host; both are counted.
class NcclOrStaged final : public engine::StreamBackend {
public:
    NcclOrStaged(backends::NcclPath::Dependencies nccl, backends::StagedPath::Dependencies staged)
        : nccl_(std::move(nccl)), staged_(std::move(staged)) {}

    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override {
        if (backends::is_in_nccl(bundle->bundle())) {
            ++by_nccl;
            return nccl_.enqueue(std::move(bundle), stream);
        }
        ++by_host;
        staged_.enqueue(std::move(bundle), stream);
    }
    void release() noexcept override {
        nccl_.release();
        staged_.release();
    }
    bool was_released() const noexcept override { return false; }
    void stop() noexcept override {
        nccl_.stop();
        staged_.stop();
    }

    std::atomic<int> by_nccl = 0, by_host = 0;

private:
    backends::NcclPath nccl_;
    backends::StagedPath staged_;
};

/// What a path needs of a process set, apart from the runtime, which has a path of its own.
struct PathSite {
    std::vector<int> ranks;
    std::shared_ptr<backends::ScratchStore> scratch = std::make_shared<backends::ScratchStore>();
    std::shared_ptr<trace::Timeline> timeline = std::make_shared<trace::Timeline>();
    std::unique_ptr<engine::Backend> driving;
    std::optional<backends::Results> results;
};

struct NcclUse {
    std::uint16_t context = 0;  ///< of the process set
    int device = 0;
    std::chrono::milliseconds connect_limit = std::chrono::seconds(60);
};

/// Lets the CUDA tensors of a process set, all of whose ranks call this, go by NCCL. Returns the
/// path, which the set owns.
inline std::shared_ptr<NcclOrStaged> use_nccl(SetRuntime& set, const NcclUse& use) {
    const auto [context, device, connect_limit] = use;
    const auto driver = set.use_device({DeviceKind::cuda, device});
    const auto found = driver->nccl("auto");
    if (!found.nccl) throw Error(ErrorCode::unavailable, found.reason);
    const auto site = std::make_shared<PathSite>();
    const auto& of_set = set.group_ranks();
    for (int rank = 0; rank < set.size(); ++rank) site->ranks.push_back(of_set.world_rank(rank));
    const auto group = [&](int of, engine::Pump* pump) {
        return wire::Group{.transport = set.transport(),
                           .ranks = site->ranks,
                           .group_rank = set.group_rank(),
                           .tag = {static_cast<std::uint16_t>(of), wire::Lane::device_data},
                           .pump = pump};
    };
    const auto backend = [&](const wire::Group& of) {
        return std::make_unique<backends::HostBackend>(of, site->scratch, site->timeline);
    };
    // Contexts that no process set has: the lanes of this one are taken.
    site->driving = backend(group(context + 1000, &set.engine()));
    site->results.emplace(backends::Results::Dependencies{
        .driver = driver,
        .device = device,
        .rank = set.group_rank(),
        .ranks = set.size(),
        .world_rank = [ranks =
                           site->ranks](int rank) { return ranks[static_cast<std::size_t>(rank)]; },
        .driving = *site->driving});
    const auto path = std::make_shared<NcclOrStaged>(
        backends::NcclPath::Dependencies{.driver = driver,
                                         .nccl = *found.nccl,
                                         .device = device,
                                         .group = group(context, &set.engine()),
                                         .results = *site->results,
                                         .driving = *site->driving,
                                         .connect_limit = connect_limit,
                                         .owner = site},
        backends::StagedPath::Dependencies{.driver = driver,
                                           .device = device,
                                           .rank = set.group_rank(),
                                           .results = *site->results,
                                           .mover = backend(group(context + 2000, nullptr)),
                                           .doorbell = set.transport().doorbell(),
                                           .wait = set.transport().wait_settings(),
                                           .owner = site});
    static auto& completions = *new auto(std::make_shared<engine::Completions>(driver));
    set.engine().add_executor(
        DeviceKind::cuda,
        std::make_shared<engine::StreamExecutor>(engine::StreamExecutor::Dependencies{
            .driver = driver, .device = device, .backend = path, .completions = completions}));
    return path;
}

/// The same of all ranks, each of which has the device of its number on the host.
inline std::shared_ptr<NcclOrStaged> use_nccl(
    Session& session, std::chrono::milliseconds connect_limit = std::chrono::seconds(60)) {
    auto& world = *api::runtime_of(&session)->world();
    const int devices = world.driver_of(DeviceKind::cuda)->device_count();
    const auto path =
        use_nccl(world, {.device = session.local_rank() % devices, .connect_limit = connect_limit});
    barrier();
    return path;
}

/// That of the process's session, which goes by NCCL from the first call on.
inline NcclOrStaged& path_in_use() {
    static const auto path = use_nccl(Session::current());
    return *path;
}

}  // namespace guozhuang::test
