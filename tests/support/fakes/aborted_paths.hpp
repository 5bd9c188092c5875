#pragma once

#include <vector>

#include "support/runner/sanitizer.hpp"

namespace guozhuang::test {

/// The paths of device tensors on which jobs are aborted. On paths with arenas, released streams
/// race for the arenas, by intent: their results are garbage.
inline const std::vector<const char*> aborted_paths =
    under_thread_sanitizer ? std::vector{"staged"} : std::vector{"direct", "ring", "staged"};

}  // namespace guozhuang::test
