#include "device/cuda/driver_functions.hpp"

#include <cuda_runtime_api.h>
#include <guozhuang/error.hpp>
#include <string>

#include "device/cuda/cuda_error.hpp"

namespace guozhuang::device {
namespace {

/// The version is the one that the function's type is named after. A later one could be answered
/// with a function of other arguments (cuStreamGetCtx has three since 12.5), and a version that is
/// newer than the driver's is refused.
template <class Function>
void find(const char* name, unsigned version, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result),
          name);
    if (result != cudaDriverEntryPointSuccess || !found)
        throw Error(ErrorCode::unavailable, std::string("the NVIDIA driver has no ") + name);
    function = reinterpret_cast<Function>(found);
}

}  // namespace

const DriverFunctions& driver_functions() {
    static const DriverFunctions found = [] {
        DriverFunctions functions;
        find("cuCtxGetCurrent", 4000, functions.get_context);
        find("cuCtxSetCurrent", 4000, functions.set_context);
        find("cuCtxGetDevice", 2000, functions.device_of_context);
        find("cuStreamGetCtx", 9020, functions.context_of_stream);
        find("cuThreadExchangeStreamCaptureMode", 10010, functions.exchange_capture_mode);
        find("cuPointerGetAttributes", 7000, functions.pointer_attributes);
        // These versions are the functions that cuda.h calls _v2. The first one tells MIG slices of
        // a GPU apart; before, it was that of the GPU.
        find("cuDeviceGetUuid", 11040, functions.uuid_of);
        find("cuStreamWriteValue32", 11070, functions.write_value);
        find("cuStreamWaitValue32", 11070, functions.wait_value);
        find("cuStreamBatchMemOp", 11070, functions.batch_words);
        return functions;
    }();
    return found;
}

}  // namespace guozhuang::device
