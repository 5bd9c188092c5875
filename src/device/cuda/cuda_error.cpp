#include "device/cuda/cuda_error.hpp"

#include <cuda.h>
#include <guozhuang/error.hpp>
#include <string>

namespace guozhuang::device {
namespace {

/// Two functions of CUDA's driver that its runtime does not have. They are looked up through the
/// runtime, because the plugin is not linked to libcuda.
struct Contexts {
    CUresult(CUDAAPI* get)(CUcontext*) = nullptr;
    CUresult(CUDAAPI* set)(CUcontext) = nullptr;
};

template <class Function>
void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(
        cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result),
        name);
    if (result != cudaDriverEntryPointSuccess)
        throw Error(ErrorCode::unavailable, std::string("the NVIDIA driver has no ") + name);
    function = reinterpret_cast<Function>(found);
}

/// Looked up once for the process; the plugin is never unloaded.
const Contexts& contexts() {
    static const Contexts found = [] {
        Contexts functions;
        find("cuCtxGetCurrent", functions.get);
        find("cuCtxSetCurrent", functions.set);
        return functions;
    }();
    return found;
}

}  // namespace

void check(cudaError_t status, const char* tried, std::source_location where) {
    if (status == cudaSuccess) return;
    const auto code =
        status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::unavailable;
    throw Error(code,
                std::string("CUDA: ") + tried + ": " + cudaGetErrorString(status) + " (" +
                    cudaGetErrorName(status) + ")",
                where);
}

OnDevice::OnDevice(int device) {
    CUcontext before = nullptr;
    if (contexts().get(&before) != CUDA_SUCCESS)
        throw Error(ErrorCode::unavailable, "CUDA: no current context can be read");
    before_ = before;
    check(cudaSetDevice(device), "cannot use the device");
}

OnDevice::~OnDevice() {
    contexts().set(static_cast<CUcontext>(before_));
}

}  // namespace guozhuang::device
