#pragma once

#include <vector>

#include "support/runner/sanitizer.hpp"

namespace guozhuang::test {

/// The paths of device tensors on which jobs are aborted. On those with arenas, streams that were
/// let go race for these, by intent: what they do is rubbish.
inline const std::vector<const char*> aborted_paths =
    under_thread_sanitizer ? std::vector{"staged"} : std::vector{"direct", "ring", "staged"};

}  // namespace guozhuang::test
