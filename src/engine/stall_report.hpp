#pragma once

#include <string>
#include <vector>

#include "engine/control.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {

/// What can be said about an operation that does not come forward.
struct StallReport {
    std::string text;  ///< "... on ranks 0,1; rank 2 has not submitted it (pid 7, stopped; after it had submitted allreduce 'grad6')"
    std::vector<int> missing;  ///< positions of the ranks that have not submitted it, as far as that can be seen
    bool is_first = true;      ///< no rank with a lower number can say it
};

/// Whose operation it is.
struct StallScene {
    const Members& members;
    int size = 0;  ///< of the process set
    int rank = 0;  ///< this one's in the world
    Job& job;
};

/// `decided`: the log has resolved it, and it is under way.
StallReport report_stall(const Stalled& stalled, const StallScene& scene, bool decided);

}  // namespace guozhuang::engine
