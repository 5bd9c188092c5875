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

/// Where a rank and its device are, and its NCCL. Plain bytes, which the ranks of a set exchange.
struct RankDevice {
    std::int32_t host = 0;
    std::uint64_t process = 0;
    device::DeviceId device{};
    std::int32_t queues = 0;  ///< of the device for one process's work
    bool has_nccl = false;
    std::array<char, 255> nccl{};  ///< its version, or why there is none; ends with a 0

    void set_nccl(bool usable, std::string_view text) noexcept {
        has_nccl = usable;
        nccl = {};
        text.copy(nccl.data(), nccl.size() - 1);
    }
};

/// A path that cannot work, and why.
struct RefusedPath {
    base::DevicePath path;
    std::string reason;
};

/// The paths to try, best first, and those that cannot work. If one path was asked for, only that
/// one is considered. The last candidate of an automatic choice always works.
struct PathChoice {
    std::vector<base::DevicePath> candidates;
    std::vector<RefusedPath> refused;
};

struct PathConditions {
    base::DevicePath wanted = base::DevicePath::automatic;  ///< otherwise the only one to try
    bool reproducible = false;
};

/// How many queues of a GPU this process may fill, whatever number of streams it has.
int cuda_queues();

/// Whether the settings allow NCCL. If not, NCCL is not loaded.
bool may_be_nccl(const PathConditions& conditions);

/// On every path the streams of the ranks wait for each other. Returns why they cannot, the same
/// text on all ranks; empty if they can.
std::string why_no_path(std::span<const RankDevice> ranks);

/// Returns the same on all ranks.
PathChoice choose_paths(std::span<const RankDevice> ranks, const PathConditions& conditions);

/// "not direct: ...; not ring: ...", for users, after the path that was asked for.
std::string describe(std::span<const RefusedPath> refused, base::DevicePath wanted);

}  // namespace guozhuang::backends
