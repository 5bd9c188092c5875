#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <limits>

#include "base/wait.hpp"

namespace guozhuang::test {

/// How many files this process has open: the least of several looks, since the runner's watchdog
/// sometimes opens one for a moment.
inline std::ptrdiff_t open_files() {
    auto least = std::numeric_limits<std::ptrdiff_t>::max();
    for (int look = 0; look < 4; ++look) {
        using Files = std::filesystem::directory_iterator;
        least = std::min(least, std::distance(Files("/proc/self/fd"), Files()));
        base::wait_for_files({}, std::chrono::milliseconds(2));
    }
    return least;
}

}  // namespace guozhuang::test
