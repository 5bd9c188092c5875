#pragma once

#include <cudaTypedefs.h>

namespace guozhuang::device {

/// Functions that the CUDA runtime lacks, or for which, in a thread without a context, it first
/// makes one on device 0 (some 500 MB of device memory).
struct DriverFunctions {
    PFN_cuCtxGetCurrent_v4000 get_context = nullptr;
    PFN_cuCtxSetCurrent_v4000 set_context = nullptr;
    PFN_cuCtxGetDevice_v2000 device_of_context = nullptr;
    PFN_cuDeviceGetUuid_v11040 uuid_of = nullptr;
    PFN_cuStreamGetCtx_v9020 context_of_stream = nullptr;
    PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_capture_mode = nullptr;
    PFN_cuPointerGetAttributes_v7000 pointer_attributes = nullptr;
    PFN_cuStreamWriteValue32_v11070 write_value = nullptr;
    PFN_cuStreamWaitValue32_v11070 wait_value = nullptr;
    PFN_cuStreamBatchMemOp_v11070 batch_words = nullptr;
};

/// Looked up once for the process, through the runtime: the plugin is not linked to libcuda.
/// Throws Error(unavailable) if the NVIDIA driver lacks one.
const DriverFunctions& driver_functions();

}  // namespace guozhuang::device
