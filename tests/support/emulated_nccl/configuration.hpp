#pragma once

#include <cstdint>
#include <string>

namespace guozhuang::emulated_nccl {

/// Settings from the environment, read once. An invalid value ends the process.
struct Configuration {
    int version;                     ///< EMULATED_NCCL_VERSION (the header's)
    int ctas;                        ///< EMULATED_NCCL_CTAS (none): maxCTAs as it must be
    int abort_ms;                    ///< EMULATED_NCCL_ABORT_MS (100): how long an abort takes
    bool hangs;                      ///< EMULATED_NCCL_HANG (0): this rank never connects
    std::uint64_t host;              ///< hash of NCCL_HOSTID, which is NCCL's own
    std::string failing_function;    ///< EMULATED_NCCL_FAIL=FUNCTION:NTH, a system error
    std::uint64_t failing_call = 0;  ///< its nth call, from 1
    /// EMULATED_NCCL_ASYNC=NTH: the nth group of a communicator fails in the background.
    std::uint64_t failing_group = 0;
};

const Configuration& configuration();

}  // namespace guozhuang::emulated_nccl
