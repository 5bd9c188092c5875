#include "device/cuda/cuda_error.hpp"

#include <guozhuang/error.hpp>
#include <string>

namespace guozhuang::device {

void check(cudaError_t status, const char* tried, std::source_location where) {
    if (status == cudaSuccess) return;
    const auto code =
        status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::unavailable;
    throw Error(code,
                std::string("CUDA: ") + tried + ": " + cudaGetErrorString(status) + " (" +
                    cudaGetErrorName(status) + ")",
                where);
}

}  // namespace guozhuang::device
