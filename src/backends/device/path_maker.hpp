#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/device/host_mover.hpp"
#include "backends/device/launch_order.hpp"
#include "backends/device/path.hpp"
#include "backends/device/path_choice.hpp"
#include "backends/device/paths.hpp"
#include "backends/device/peer_arenas.hpp"
#include "backends/device/rank_exchange.hpp"
#include "backends/device/results.hpp"
#include "base/device_path.hpp"
#include "device/device.hpp"
#include "device/or_reason.hpp"
#include "engine/backend.hpp"
#include "wire/group/group.hpp"

namespace guozhuang::backends {

/// Makes the paths of a process set, and owns what several of them use. Only the driving thread
/// calls it.
class PathMaker {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;                             ///< its index
        wire::Group group;                          ///< of the process set; its waits pump
        LaunchOrder& order;                         ///< of the rank
        std::string nccl;                           ///< what GUOZHUANG_NCCL says
        std::chrono::milliseconds connect_limit{};  ///< how long NCCL may take to connect
        std::size_t arena_bytes = 0;  ///< most of the device's memory for one rank to move tensors
        /// Makes a backend that moves tensors in host memory among the group's ranks.
        std::function<std::unique_ptr<engine::Backend>(const wire::Group&)> make_host_backend;
        /// Moves what the ranks tell each other; runs on the driving thread.
        engine::Backend& driving;
        /// Owns the resources that the backends and the doorbell refer to.
        std::shared_ptr<void> owner;
    };
    /// `paths`: the paths that the set uses; they outlive this.
    PathMaker(Dependencies dependencies, const Paths& paths);

    /// Describes this rank's device and NCCL, so that the ranks can choose a path. Loads NCCL if
    /// the conditions allow it.
    RankDevice own_device(const PathConditions& conditions);
    /// Tries a candidate. Collective, with the same result on all ranks. Throws what ends the job.
    device::OrReason<std::unique_ptr<Path>> try_to_make(base::DevicePath path,
                                                        const RankExchange& exchange);
    /// These always succeed, unless the driver throws.
    std::unique_ptr<Path> make_lone() const;
    std::unique_ptr<Path> make_staged();

private:
    int rank() const noexcept { return deps_.group.group_rank; }
    int ranks() const noexcept { return static_cast<int>(deps_.group.ranks.size()); }
    int world_rank(int rank) const { return deps_.group.ranks[static_cast<std::size_t>(rank)]; }
    device::OrReason<std::unique_ptr<Path>> nccl(const RankExchange& exchange);
    template <class Way>
    device::OrReason<std::unique_ptr<Path>> over_arenas(const RankExchange& exchange,
                                                        std::vector<int> reached, bool writes);
    device::OrReason<std::unique_ptr<Path>> refused(const wire::SharingFailure& failure) const;
    HostMover& mover();
    std::unique_ptr<engine::Backend> moved_among(wire::Group group) const;

    const Dependencies deps_;
    const Paths& paths_;
    const Results results_;
    /// The arenas of every path that was tried, refused ones too: freeing device memory may wait
    /// for the trainer's work there, so the driving thread must not do it.
    std::vector<std::shared_ptr<PeerArenas>> arenas_;
    device::Nccl* nccl_ = nullptr;      ///< null if there is none
    std::unique_ptr<HostMover> mover_;  ///< null until it is needed
};

}  // namespace guozhuang::backends
