#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/device_path.hpp"
#include "device/memory_sharing.hpp"

namespace guozhuang::backends {

/// Where the device of a rank is: plain bytes, which the ranks of a set exchange.
struct RankDevice {
    std::int32_t host = 0;
    device::DeviceId device{};
};

/// A path that is not taken, and why.
struct RefusedPath {
    base::DevicePath path;
    std::string reason;
};

/// The paths to try, the best one first, and those that cannot be. The last one of an automatic
/// choice always can be.
struct PathChoice {
    std::vector<base::DevicePath> candidates;
    std::vector<RefusedPath> refused;
};

/// The same on all ranks. `wanted`: automatic, or the only one to try.
PathChoice choose_paths(std::span<const RankDevice> ranks, base::DevicePath wanted);

/// "not direct: ...; not staged: ...", for users.
std::string describe(std::span<const RefusedPath> refused);

}  // namespace guozhuang::backends
