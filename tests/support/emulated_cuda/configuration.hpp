#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace guozhuang::emulated_cuda {

/// What the environment says, read once. An invalid value ends the process.
struct Configuration {
    /// The devices that CUDA_VISIBLE_DEVICES leaves of EMULATED_CUDA_DEVICES (1), by their numbers
    /// in the machine.
    std::vector<int> devices;
    int driver;                    ///< EMULATED_CUDA_DRIVER (13000); 0 is none
    std::size_t memory_bytes;      ///< EMULATED_CUDA_MEMORY_MIB (1024), of each device
    bool peers;                    ///< EMULATED_CUDA_PEERS (1): devices reach each other's memory
    int channels;                  ///< CUDA_DEVICE_MAX_CONNECTIONS (0), of each device; 0: no limit
    std::string failing_function;  ///< EMULATED_CUDA_FAIL=FUNCTION:NTH[:ERROR]
    std::uint64_t failing_call = 0;  ///< its nth call, from 1
    int failure = 999;               ///< and what that returns (cudaErrorUnknown)
    std::string trace;               ///< EMULATED_CUDA_TRACE; empty is none
};

const Configuration& configuration();

}  // namespace guozhuang::emulated_cuda
