#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backends/host/staging_tuner.hpp"
#include "topology/host_grid.hpp"
#include "wire/group/group.hpp"
#include "wire/group/group_wire.hpp"
#include "wire/shm/shared_file.hpp"
#include "wire/shm/staging.hpp"

namespace guozhuang::backends {

bool is_the_world(const wire::Group& group) noexcept;
/// Whether the group moves the host tensors of the world, which get most staging memory; their
/// ranks create it while the session starts.
bool is_the_first(const wire::Group& group) noexcept;

/// Whether these ranks are on one host and share memory there, and their number fits the stages.
/// The same on all of them.
bool can_stage(const wire::Transport& transport, std::span<const int> ranks);

/// The stages of a process set (the world is the first), one for each of its ranks on this host.
/// Each set has its own, because a rank may stage for several sets at once. On each host the set's
/// first rank creates them, and the others attach.
class SetStagingBuffers {
public:
    /// Collective over the wire's group. Empty on all ranks if one could not get its stage; the
    /// first such rank warns. Throws what the wire throws.
    static std::optional<SetStagingBuffers> create_shared(wire::GroupWire& wire,
                                                          const wire::Group& group);

    /// By local rank in the group. Valid while this object lives.
    wire::Staging staging() const noexcept;

private:
    SetStagingBuffers(wire::SharedFile file, int ranks) : file_(std::move(file)), ranks_(ranks) {}

    wire::SharedFile file_;
    int ranks_;  ///< of this host
};

/// A group on several hosts, for hierarchical algorithms: the ranks on this rank's host, and the
/// ranks of its columns (see topology::HostGrid).
class Hierarchy {
public:
    /// Whether the group can have one: there are several hosts, one with several ranks, and the
    /// stages are large enough. The same on all ranks.
    static bool fits(const wire::Group& group);
    /// `staging`: of the ranks on this host.
    Hierarchy(const wire::Group& group, const wire::Staging& staging);
    Hierarchy(const Hierarchy&) = delete;
    Hierarchy& operator=(const Hierarchy&) = delete;

    /// Whether host_doubling_allreduce can reduce a bundle of this size.
    bool may_double(std::size_t bytes);

    StagingTuner& local() noexcept { return local_; }
    /// For each column of this rank, in ascending order; for a rank of no column that of the first,
    /// as this host's rank sees it.
    std::span<wire::GroupWire> across() noexcept { return across_; }

private:
    topology::HostGrid grid_;
    StagingTuner local_;
    std::vector<std::vector<int>> columns_;  ///< world ranks of each in across_
    std::vector<wire::GroupWire> across_;
};

}  // namespace guozhuang::backends
