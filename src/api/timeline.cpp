#include <guozhuang/timeline.hpp>

#include "api/process_set_state.hpp"
#include "base/log.hpp"

namespace guozhuang {

bool start_timeline(const std::string& directory, Session* session) {
    const auto problem = api::runtime_of(session)->start_timeline(directory);
    if (!problem.empty()) base::log_warning(problem);
    return problem.empty();
}

void stop_timeline(Session* session) {
    api::runtime_of(session)->stop_timeline();
}

}  // namespace guozhuang
