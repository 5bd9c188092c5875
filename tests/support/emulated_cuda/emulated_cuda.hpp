#pragma once

#include <cstdint>

/// Functions for tests that libemulated_cudart.so exports besides CUDA's.
extern "C" {

/// Makes the device fail now, as an illegal access by one of the trainer's kernels would: every
/// later call returns cudaErrorIllegalAddress, and its streams drop their work.
void emulated_cuda_break_device(int device);

/// How many CUDA calls this process has made.
std::uint64_t emulated_cuda_calls();

/// How many of them were of this function.
std::uint64_t emulated_cuda_calls_of(const char* function);

/// The number of blocks of the largest grid launched since the last call.
unsigned emulated_cuda_largest_grid();

/// The rules in force here, a line each, and those that are not, with the reason.
const char* emulated_cuda_rules();
}
