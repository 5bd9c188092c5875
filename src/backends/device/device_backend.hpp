#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/device/host_mover.hpp"
#include "backends/device/launch_order.hpp"
#include "backends/device/path.hpp"
#include "backends/device/path_choice.hpp"
#include "backends/device/peer_arenas.hpp"
#include "backends/device/rank_exchange.hpp"
#include "backends/device/results.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "engine/backend.hpp"
#include "topology/host_grid.hpp"
#include "wire/group/group.hpp"

namespace guozhuang::backends {

/// Moves a process set's tensors on a device. With the first bundle the ranks tell each other where
/// their devices are, and try and choose the path that bundles take from then on. What that one
/// does not move takes the staged one.
class DeviceBackend final : public engine::StreamBackend {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;      ///< its index
        wire::Group group;   ///< of the process set; its waits are the thread's that drives
        std::string set;     ///< its name for users
        LaunchOrder& order;  ///< of the rank
        PathConditions conditions;
        std::string nccl;                           ///< what GUOZHUANG_NCCL says
        std::chrono::milliseconds connect_limit{};  ///< how long NCCL may take to connect
        std::size_t arena_bytes = 0;  ///< most of the device's memory for one rank to move tensors
        /// Told once which path bundles take, and why no better one.
        std::function<void(const std::string&)> report;
        /// Makes a backend that moves tensors in memory of the host among the group's ranks.
        std::function<std::unique_ptr<engine::Backend>(const wire::Group&)> make_host_backend;
        /// Moves what the ranks tell each other; the thread that drives runs it.
        engine::Backend& driving;
        /// Keeps alive what those backends and the doorbell are of.
        std::shared_ptr<void> owner;
    };
    explicit DeviceBackend(Dependencies dependencies);

    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override;
    bool was_released() const noexcept override;
    void stop() noexcept override;

private:
    void choose(const engine::Bundle& first);
    int rank() const noexcept { return of_.group.group_rank; }
    int ranks() const noexcept { return static_cast<int>(of_.group.ranks.size()); }
    int world_rank(int rank) const { return of_.group.ranks[static_cast<std::size_t>(rank)]; }
    RankDevice own_device();
    std::unique_ptr<Path> make(base::DevicePath path, const RankExchange& exchange,
                               std::string& why_not);
    std::unique_ptr<Path> nccl(const RankExchange& exchange, std::string& why_not);
    std::unique_ptr<Path> direct(const RankExchange& exchange, std::string& why_not);
    std::unique_ptr<Path> ring(const RankExchange& exchange, std::string& why_not);
    std::unique_ptr<Path> hierarchical(const RankExchange& exchange, std::string& why_not);
    PeerArenas& make_arenas(const RankExchange& exchange, std::size_t bytes,
                            std::vector<int> reached);
    PeerArenas* share_arenas(const RankExchange& exchange, std::vector<int> reached,
                             std::string& why_not);
    std::string text_of(const wire::SharingFailure& failure) const;
    Path& path_for(const engine::Bundle& bundle);
    std::unique_ptr<Path> make_staged();
    Path& staged();
    HostMover& mover();
    std::unique_ptr<engine::Backend> moved_among(wire::Group group) const;
    Path& keep(std::unique_ptr<Path> path);
    RankExchange exchange_for(const engine::Bundle& bundle) const;
    RankExchange exchange_on_host() const;

    const Dependencies of_;
    const topology::HostGrid grid_;
    const Results results_;
    device::Nccl* nccl_ = nullptr;  ///< null if there is none
    // Of the thread that drives.
    std::vector<std::unique_ptr<PeerArenas>> arenas_;  ///< that have been tried
    Path* chosen_ = nullptr;                           ///< null before the first bundle
    Path* staged_ = nullptr;                           ///< null until it is needed
    mutable base::Mutex mutex_;
    std::vector<std::unique_ptr<Path>> paths_ GUOZHUANG_GUARDED_BY(mutex_);
    bool is_released_ GUOZHUANG_GUARDED_BY(mutex_) = false;
    /// Null until it is needed. Its thread ends before the paths do.
    std::unique_ptr<HostMover> mover_;
};

}  // namespace guozhuang::backends
