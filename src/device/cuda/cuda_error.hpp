#pragma once

#include <cuda_runtime_api.h>
#include <source_location>

namespace guozhuang::device {

/// Throws Error(unavailable), or Error(out_of_memory), unless the status is success. The text says
/// what was tried ("cannot copy") and what CUDA answers.
void check(cudaError_t status, const char* tried,
           std::source_location where = std::source_location::current());

/// Makes a device current for the calling thread, and in the end the context that was current
/// before, or none. Setting device 0 again would instead create a context on it (some 500 MB of
/// device memory) in a thread that had none.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

private:
    void* before_ = nullptr;
};

}  // namespace guozhuang::device
