#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace guozhuang::topology {

/// How much processor time a control group lets its processes use together, on whatever cores
/// (`docker --cpus=2`, a CPU limit of Kubernetes).
struct Quota {
    int cores = 0;  ///< so many at full speed, rounded down but at least 1; 0: no limit
    /// The group that is limited: the same number in all processes of the machine that it limits.
    std::uint64_t group = 0;
};

/// The smallest quota of this process's control group and of those around it, of version 1 and 2.
/// What cannot be read limits nothing. `root` is / except in tests.
Quota cpu_quota(const std::filesystem::path& root = "/");

/// How many of `cores` cores processes with these quotas can use together: those of one group share
/// its quota. Without a quota on one of them: all.
int cores_within(int cores, std::span<const Quota> quotas);

}  // namespace guozhuang::topology
