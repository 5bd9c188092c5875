#pragma once

#include <cstdint>

/// Functions for tests that libemulated_cudart.so exports besides CUDA's.
extern "C" {

/// Makes the device fail now, as an illegal access by a kernel of the trainer's would: every later
/// call returns cudaErrorIllegalAddress, and its streams drop their work.
void emulated_cuda_break_device(int device);

/// How many calls of CUDA this process has made.
std::uint64_t emulated_cuda_calls();

/// How many of them were of this function.
std::uint64_t emulated_cuda_calls_of(const char* function);

/// The blocks of the largest grid that was launched since this was asked last.
unsigned emulated_cuda_largest_grid();

/// The rules that are in force here, a line each, and those that are not, which then say why.
const char* emulated_cuda_rules();
}
