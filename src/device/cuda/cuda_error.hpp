#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <source_location>

namespace guozhuang::device {

/// Throws Error(unavailable), or Error(out_of_memory), unless the status is success. The text has
/// what was tried ("cannot copy") and the answer of CUDA.
void check(cudaError_t status, const char* tried,
           std::source_location where = std::source_location::current());

/// The same for the CUDA driver.
inline void check(CUresult status, const char* tried,
                  std::source_location where = std::source_location::current()) {
    check(static_cast<cudaError_t>(status), tried, where);  // the runtime has the same numbers
}
static_assert(int{CUDA_ERROR_OUT_OF_MEMORY} == int{cudaErrorMemoryAllocation} &&
              int{CUDA_ERROR_ILLEGAL_ADDRESS} == int{cudaErrorIllegalAddress} &&
              int{CUDA_ERROR_NOT_SUPPORTED} == int{cudaErrorNotSupported});

}  // namespace guozhuang::device
