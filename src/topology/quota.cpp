#include "topology/quota.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <sys/stat.h>

namespace guozhuang::topology {
namespace {

namespace fs = std::filesystem;

/// The number at the beginning of a file, or behind its first word; 0 if there is none: "max", or
/// no file.
double number_in(const fs::path& file, int word = 0) {
    std::ifstream in(file);
    std::string text;
    for (int i = 0; i <= word; ++i)
        if (!(in >> text)) return 0;
    return std::strtod(text.c_str(), nullptr);
}

/// The quota in cores; 0 for none. Version 2 has both numbers in one file, "max 100000" without a
/// limit; version 1 has a file for each, and -1 for no limit.
double quota_of(const fs::path& group, bool unified) {
    const auto quota =
        unified ? number_in(group / "cpu.max") : number_in(group / "cpu.cfs_quota_us");
    const auto period =
        unified ? number_in(group / "cpu.max", 1) : number_in(group / "cpu.cfs_period_us");
    return quota > 0 && period > 0 ? quota / period : 0;
}

/// Looks for the smallest quota, from the group `below` the mounted `top` up to `top`. It takes the
/// outer one of equal quotas, which more processes share. In a container the name may be the
/// group's name on the host, which does not exist here: the mounted top is the container's own
/// group.
void look_upwards(const fs::path& top, fs::path below, bool unified, double& least, Quota& found) {
    for (;; below = below.parent_path()) {
        const auto group = below.empty() ? top : top / below;
        struct stat facts {};
        const auto cores = quota_of(group, unified);
        if (cores > 0 && (least == 0 || cores <= least) && stat(group.c_str(), &facts) == 0) {
            least = cores;
            found = {.cores = std::max(1, static_cast<int>(std::min(std::floor(cores), 1e6))),
                     .group = facts.st_ino};
        }
        if (below.empty()) return;
    }
}

}  // namespace

Quota cpu_quota(const fs::path& root) {
    Quota found;
    double least = 0;
    std::ifstream groups(root / "proc/self/cgroup");
    const auto mounted = root / "sys/fs/cgroup";
    // "0::/a/b" is of version 2, "4:cpu,cpuacct:/a/b" of version 1.
    for (std::string line; std::getline(groups, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const auto controllers = line.substr(first + 1, second - first - 1);
        const auto below = fs::path(line.substr(second + 1)).lexically_normal().relative_path();
        if (controllers.empty()) {
            for (const auto& top : {mounted, mounted / "unified"})
                look_upwards(top, below, true, least, found);
        } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
            for (const auto& top : {mounted / controllers, mounted / "cpu"})
                look_upwards(top, below, false, least, found);
        }
    }
    return found;
}

int cores_within(int cores, std::span<const Quota> quotas) {
    std::map<std::uint64_t, int> of_group;
    for (const auto& quota : quotas) {
        if (quota.cores == 0) return cores;
        of_group[quota.group] = quota.cores;
    }
    int together = 0;
    for (const auto& [group, allowed] : of_group) together += std::min(allowed, cores);
    return std::min(cores, together);
}

}  // namespace guozhuang::topology
