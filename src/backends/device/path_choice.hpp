#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_path.hpp"
#include "device/memory_sharing.hpp"

namespace guozhuang::backends {

/// Where a rank and its device are, and its NCCL: plain bytes, which the ranks of a set exchange.
struct RankDevice {
    std::int32_t host = 0;
    std::uint64_t process = 0;
    device::DeviceId device{};
    std::int32_t queues = 0;  ///< in which the device takes the work of a process
    bool has_nccl = false;
    std::array<char, 255> nccl{};  ///< its version, or why there is none; ends with a 0

    void set_nccl(bool usable, std::string_view text) noexcept {
        has_nccl = usable;
        nccl = {};
        text.copy(nccl.data(), nccl.size() - 1);
    }
};

/// A path that is not taken, and why.
struct RefusedPath {
    base::DevicePath path;
    std::string reason;
};

/// The paths to try, the best one first, and those that cannot be; if one path is asked for, that
/// one alone. The last one of an automatic choice always can be.
struct PathChoice {
    std::vector<base::DevicePath> candidates;
    std::vector<RefusedPath> refused;
};

struct PathConditions {
    base::DevicePath wanted = base::DevicePath::automatic;  ///< else the only one to try
    bool reproducible = false;
};

/// In how many queues a GPU takes the work of this process, whatever streams that is on.
int cuda_queues();

/// Whether it depends on the ranks alone; else nothing need be known of NCCL.
bool may_be_nccl(const PathConditions& conditions);

/// The streams of ranks wait for each other on every path. Why that cannot be, the same on all
/// ranks; empty if it can.
std::string why_no_path(std::span<const RankDevice> ranks);

/// The same on all ranks.
PathChoice choose_paths(std::span<const RankDevice> ranks, const PathConditions& conditions);

/// "not direct: ...; not ring: ...", for users, and before that which path is asked for.
std::string describe(std::span<const RefusedPath> refused, base::DevicePath wanted);

}  // namespace guozhuang::backends
