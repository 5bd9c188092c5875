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

/// What the first words of a file say; 0 for what is no number: "max", or a file that is not there.
double number_in(const fs::path& file, int word = 0) {
    std::ifstream in(file);
    std::string text;
    for (int i = 0; i <= word; ++i)
        if (!(in >> text)) return 0;
    return std::strtod(text.c_str(), nullptr);
}

/// In cores; 0: none. In version 2 one file has both numbers, "max 100000" without a limit; in
/// version 1 each number has a file, and -1 is no limit.
double quota_of(const fs::path& group, bool unified) {
    const auto quota =
        unified ? number_in(group / "cpu.max") : number_in(group / "cpu.cfs_quota_us");
    const auto period =
        unified ? number_in(group / "cpu.max", 1) : number_in(group / "cpu.cfs_period_us");
    return quota > 0 && period > 0 ? quota / period : 0;
}

/// Goes from the group `below` the mounted `top` up to `top`. Of equal limits the outer one is
/// taken, which more processes share. A container may see the name that its group has on the host
/// while its own group is the mounted top: then the name leads nowhere, and the top is read all the
/// same.
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
