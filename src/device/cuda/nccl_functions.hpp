#pragma once

#include <nccl.h>
#include <source_location>
#include <string>

namespace guozhuang::device {

/// The functions of the loaded NCCL, whose version may differ from the header's: every version from
/// `oldest_nccl` on has them all.
struct NcclFunctions {
    decltype(&ncclGetVersion) get_version = nullptr;
    decltype(&ncclGetErrorString) error_string = nullptr;
    decltype(&ncclGetLastError) last_error = nullptr;
    decltype(&ncclGetUniqueId) make_id = nullptr;
    decltype(&ncclCommInitRankConfig) connect = nullptr;
    decltype(&ncclCommGetAsyncError) async_error = nullptr;
    decltype(&ncclCommFinalize) finalize = nullptr;
    decltype(&ncclCommDestroy) destroy = nullptr;
    decltype(&ncclCommAbort) abort = nullptr;
    decltype(&ncclGroupStart) group_start = nullptr;
    decltype(&ncclGroupEnd) group_end = nullptr;
    decltype(&ncclAllReduce) allreduce = nullptr;
    decltype(&ncclBroadcast) broadcast = nullptr;
    decltype(&ncclAllGather) all_gather = nullptr;
    decltype(&ncclReduceScatter) reduce_scatter = nullptr;
    decltype(&ncclReduce) reduce = nullptr;
    decltype(&ncclSend) send = nullptr;
    decltype(&ncclRecv) receive = nullptr;
};

/// The first version with communicators that do not block.
inline constexpr int oldest_nccl = NCCL_VERSION(2, 14, 0);

/// The first version with a setting for the number of CTAs; the header must also be at least this
/// version.
inline constexpr int oldest_nccl_with_limit = NCCL_VERSION(2, 17, 0);

/// "2.28.9"
std::string nccl_version_text(int code);

/// Fills the table from a library that dlopen() has returned. Throws Error(unavailable) with the
/// reason if NCCL cannot be used.
NcclFunctions nccl_functions_of(void* library);

/// Throws Error(unavailable) if NCCL has no setting for the number of CTAs.
void require_cta_limit(const NcclFunctions& nccl);

/// Throws Error(unavailable) unless the call has succeeded or is in progress. The text has what was
/// tried ("cannot connect") and the answer of NCCL. `communicator` may be null.
void check_nccl(const NcclFunctions& nccl, ncclResult_t result, const char* tried,
                ncclComm_t communicator,
                std::source_location where = std::source_location::current());

}  // namespace guozhuang::device
