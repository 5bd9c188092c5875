#include <chrono>
#include <cstdlib>

#include "emulation/ranks/job_path.hpp"
#include "emulation/ranks/nccl_in_use.hpp"

namespace guozhuang::test {

/// By NCCL, whose ranks connect within NCCL_CONNECT_MS.
void prepare_path(Session& session) {
    const char* const limit = std::getenv("NCCL_CONNECT_MS");
    use_nccl(session, std::chrono::milliseconds(limit ? std::atoi(limit) : 20'000));
}

}  // namespace guozhuang::test
