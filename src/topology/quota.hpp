#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace guozhuang::topology {

/// How much processor time a control group lets its processes use together, on any cores (`docker
/// --cpus=2`, a CPU limit of Kubernetes).
struct Quota {
    int cores = 0;  ///< at full speed; rounded down, but at least 1; 0: no limit
    /// Names the limited group: the same number in all processes of the machine that it limits.
    std::uint64_t group = 0;
};

/// The smallest quota among this process's control group and those around it, of version 1 and 2. A
/// file that cannot be read limits nothing. `root` is / except in tests.
Quota cpu_quota(const std::filesystem::path& root = "/");

/// How many of `cores` cores processes with these quotas can use together; those of one group share
/// its quota. All of them if one process has no quota.
int cores_within(int cores, std::span<const Quota> quotas);

}  // namespace guozhuang::topology
