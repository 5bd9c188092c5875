#pragma once

#include <vector>

#include "support/runner/sanitizer.hpp"

namespace guozhuang::test {

/// The paths of device tensors on which jobs are aborted, on one host and on several. On those with
/// arenas, streams that were let go race for these, by intent: what they do is rubbish.
inline const std::vector<const char*> aborted_paths =
    under_thread_sanitizer ? std::vector{"staged"} : std::vector{"direct", "ring", "staged"};
inline const std::vector<const char*> aborted_hosts_paths =
    under_thread_sanitizer ? std::vector{"staged"} : std::vector{"hierarchical", "staged"};

}  // namespace guozhuang::test
