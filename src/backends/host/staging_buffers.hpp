#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "backends/host/staging_tuner.hpp"
#include "topology/host_grid.hpp"
#include "wire/group/group.hpp"
#include "wire/group/group_wire.hpp"
#include "wire/shm/shared_file.hpp"
#include "wire/shm/staging.hpp"

namespace guozhuang::backends {

bool is_the_world(const wire::Group& group) noexcept;
/// Whether it moves the host tensors of the world, for which there is most memory to stage in, and
/// whose ranks make it while the session starts.
bool is_the_first(const wire::Group& group) noexcept;

/// Whether these ranks are on one host, share memory there, and stages have room for as many. The
/// same on all of them.
bool can_stage(const wire::Transport& transport, std::span<const int> ranks);

/// The stages of a process set (the world is the first), one for each of its ranks on this host: of
/// their own, because a rank may stage for several sets at once. On each host the first of its
/// ranks makes them, the others attach.
class SetStagingBuffers {
public:
    /// Collective among the ranks of the group, whose wire it is. Empty on all if one could not
    /// have its stage; the first of those warns. Throws what the wire throws.
    static std::optional<SetStagingBuffers> create_shared(wire::GroupWire& wire,
                                                          const wire::Group& group);

    /// By local rank among the group's. Valid while this object lives.
    wire::Staging staging() const noexcept;

private:
    SetStagingBuffers(wire::SharedFile file, int ranks) : file_(std::move(file)), ranks_(ranks) {}

    wire::SharedFile file_;
    int ranks_;  ///< of this host
};

/// A group on several hosts, for what goes level by level: the ranks on this one's host, and those
/// that have its local rank on each host.
class Hierarchy {
public:
    /// Whether it can be, which is the same on all ranks: there are as many on each host, more than
    /// one, and their stages have room enough.
    static bool fits(const wire::Group& group);
    /// `staging`: of the ranks on this host.
    Hierarchy(const wire::Group& group, const wire::Staging& staging);
    Hierarchy(const Hierarchy&) = delete;
    Hierarchy& operator=(const Hierarchy&) = delete;

    StagingTuner& local() noexcept { return local_; }
    wire::GroupWire& across() noexcept { return across_; }

private:
    topology::HostGrid grid_;
    StagingTuner local_;
    wire::GroupWire across_;
};

}  // namespace guozhuang::backends
