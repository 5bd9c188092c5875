#pragma once

#include <string_view>

namespace guozhuang::emulated_cuda {

/// Names the CUDA function that the calling thread is in, for the texts of rules.
void enter_function(const char* name) noexcept;

/// Prints "emulated CUDA: rule: TEXT (FUNCTION)" to stderr and aborts: an error to which a GPU
/// would answer with silence or a crash ends the test with the rule's name.
[[noreturn]] void break_rule(std::string_view text) noexcept;

/// Makes SIGSEGV name the rule when the address is one of device memory, and SIGILL when a stream
/// runs a kernel, which are compiled so that an access which is not aligned raises it. Called again
/// before each allocation, since test frameworks install handlers of their own.
void watch_faults();

}  // namespace guozhuang::emulated_cuda
