#pragma once

#include <nccl.h>
#include <source_location>
#include <string>

namespace guozhuang::device {

/// The functions of an NCCL that has been loaded, which may be another than the one whose header
/// this is: all of them are in every version from `oldest_nccl` on.
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

/// The first with communicators that do not block.
inline constexpr int oldest_nccl = NCCL_VERSION(2, 14, 0);

/// The first that can be told how many CTAs to use; the header must be of such a one, too.
inline constexpr int oldest_nccl_with_limit = NCCL_VERSION(2, 17, 0);

/// "2.28.9"
std::string nccl_version_text(int code);

/// Fills the table from a library that dlopen() has returned. Throws Error(unavailable) with the
/// reason why NCCL cannot be used.
NcclFunctions nccl_functions_of(void* library);

/// Throws Error(unavailable) if NCCL cannot be told how many CTAs to use.
void require_cta_limit(const NcclFunctions& nccl);

/// Throws Error(unavailable) unless NCCL has done what was tried, or is about to: the text says
/// what was tried ("cannot connect"), and what NCCL answers. `communicator` may be null.
void check_nccl(const NcclFunctions& nccl, ncclResult_t result, const char* tried,
                ncclComm_t communicator,
                std::source_location where = std::source_location::current());

}  // namespace guozhuang::device
