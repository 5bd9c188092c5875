#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace guozhuang::emulated_cuda {

/// Settings from the environment, read once. An invalid value ends the process.
struct Configuration {
    /// The devices out of EMULATED_CUDA_DEVICES (1) that CUDA_VISIBLE_DEVICES selects, by their
    /// numbers in the machine.
    std::vector<int> devices;
    int driver;  ///< EMULATED_CUDA_DRIVER (13000); 0 is none
    /// EMULATED_CUDA_ALLOCATIONS_WAIT (0): allocating, registering or opening memory waits for the
    /// device, as freeing it always does. CUDA may.
    bool allocations_wait;
    std::size_t memory_bytes;  ///< EMULATED_CUDA_MEMORY_MIB (1024), of each device
    /// EMULATED_CUDA_PEERS (1): devices reach each other's memory; 0: none does; ring: neighbours
    /// by their numbers in the machine do, the last and the first among them; reads: all do, but
    /// what they write there is lost.
    enum class PeerAccess { none, ring, reads, all } peers;
    int machine_devices;  ///< EMULATED_CUDA_DEVICES
    /// EMULATED_CUDA_MIG (0): they are MIG slices of one GPU. A process sees one of them, and none
    /// reaches the memory of another.
    bool is_mig;
    int channels;                    ///< CUDA_DEVICE_MAX_CONNECTIONS (8), of each device
    int seed;                        ///< EMULATED_CUDA_SEED (random), of the order of blocks
    std::string failing_function;    ///< EMULATED_CUDA_FAIL=FUNCTION:NTH[:ERROR|:kill|:stop:MS]
    std::uint64_t failing_call = 0;  ///< its nth call, from 1
    int failure = 999;               ///< and its result (cudaErrorUnknown)
    bool failure_kills = false;      ///< or it ends the process, as by signal 9
    int stop_ms = 0;                 ///< or stops it, as by a debugger, for this time
    std::string trace;               ///< EMULATED_CUDA_TRACE; empty is none
};

const Configuration& configuration();

/// Whether one of two devices, by their numbers in the machine, reaches the memory of the other.
bool are_peers(int device, int other);

}  // namespace guozhuang::emulated_cuda
