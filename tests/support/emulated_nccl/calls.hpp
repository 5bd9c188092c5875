#pragma once

#include <nccl.h>
#include <optional>
#include <string>
#include <string_view>

namespace guozhuang::emulated_nccl {

/// Prints "emulated NCCL: rule: TEXT (FUNCTION)" to stderr and aborts.
[[noreturn]] void break_rule(std::string_view text) noexcept;

/// Thrown by a body to return an error; call() catches it. ncclGetLastError() returns the text.
struct Refusal {
    ncclResult_t result;
    std::string text;
};

/// Counts the call, and returns its result if it must not run.
std::optional<ncclResult_t> begin_call(const char* function);
ncclResult_t end_call(ncclResult_t result) noexcept;
void remember(const std::string& error);
const char* last_error() noexcept;

/// Every function of NCCL is `return call(__func__, [&] { ...; return ncclSuccess; });`.
template <class Body>
ncclResult_t call(const char* function, Body&& body) {
    if (const auto refused = begin_call(function)) return end_call(*refused);
    try {
        return end_call(body());
    } catch (const Refusal& refusal) {
        remember(refusal.text);
        return end_call(refusal.result);
    }
}

}  // namespace guozhuang::emulated_nccl
