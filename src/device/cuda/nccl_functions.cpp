#include "device/cuda/nccl_functions.hpp"

#include <algorithm>
#include <dlfcn.h>
#include <guozhuang/error.hpp>

namespace guozhuang::device {
namespace {

[[noreturn]] void refuse(const std::string& reason) {
    throw Error(ErrorCode::unavailable, reason);
}

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) refuse(std::string("NCCL not loaded: ") + dlerror());
}

}  // namespace

std::string nccl_version_text(int code) {
    const int thousands = code < 10'000 ? 1000 : 10'000;  // 2.8 and older: 2804
    return std::to_string(code / thousands) + "." + std::to_string(code % thousands / 100) + "." +
           std::to_string(code % 100);
}

NcclFunctions nccl_functions_of(void* library) {
    NcclFunctions found;
    find(library, "ncclGetVersion", found.get_version);
    int version = 0;
    if (found.get_version(&version) != ncclSuccess || version < oldest_nccl)
        refuse("NCCL too old: it is " + nccl_version_text(version) + ", this build needs " +
               nccl_version_text(oldest_nccl));
    find(library, "ncclGetErrorString", found.error_string);
    find(library, "ncclGetLastError", found.last_error);
    find(library, "ncclGetUniqueId", found.make_id);
    find(library, "ncclCommInitRankConfig", found.connect);
    find(library, "ncclCommGetAsyncError", found.async_error);
    find(library, "ncclCommFinalize", found.finalize);
    find(library, "ncclCommDestroy", found.destroy);
    find(library, "ncclCommAbort", found.abort);
    find(library, "ncclGroupStart", found.group_start);
    find(library, "ncclGroupEnd", found.group_end);
    find(library, "ncclAllReduce", found.allreduce);
    find(library, "ncclBroadcast", found.broadcast);
    find(library, "ncclAllGather", found.all_gather);
    find(library, "ncclReduceScatter", found.reduce_scatter);
    find(library, "ncclReduce", found.reduce);
    find(library, "ncclSend", found.send);
    find(library, "ncclRecv", found.receive);
    return found;
}

void require_cta_limit(const NcclFunctions& nccl) {
    int version = 0;
    check_nccl(nccl, nccl.get_version(&version), "cannot tell its version", nullptr);
    version = std::min(version, NCCL_VERSION_CODE);
    if (version < oldest_nccl_with_limit)
        refuse("NCCL too old: it is " + nccl_version_text(version) +
               ", GUOZHUANG_DEVICE_SMS needs " + nccl_version_text(oldest_nccl_with_limit));
}

void check_nccl(const NcclFunctions& nccl, ncclResult_t result, const char* tried,
                ncclComm_t communicator, std::source_location where) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    auto text = std::string("NCCL: ") + tried + ": " + nccl.error_string(result);
    const char* const detail = nccl.last_error(communicator);
    if (detail && *detail) text += std::string(": ") + detail;
    throw Error(ErrorCode::unavailable, text, where);
}

}  // namespace guozhuang::device
