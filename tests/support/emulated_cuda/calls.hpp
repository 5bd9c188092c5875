#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <optional>

namespace guozhuang::emulated_cuda {

/// Thrown by a body to return an error; call() catches it.
struct Refusal {
    cudaError_t error;
};

inline void require(bool holds, cudaError_t otherwise) {
    if (!holds) throw Refusal{otherwise};
}

/// Checks that a function makes before it does anything.
struct Checks {
    bool device = true;           ///< there is one, and the current one has not failed
    bool unsafe = false;          ///< must not be called while a stream is captured
    bool remembers_error = true;  ///< cudaGetLastError() returns its error
};
inline constexpr Checks usual{};
inline constexpr Checks unsafe_in_capture{.unsafe = true};
inline constexpr Checks without_device{.device = false};
inline constexpr Checks about_errors{.device = false, .remembers_error = false};

/// Counts the call, enforces the rules, and returns its result if it must not run.
std::optional<cudaError_t> begin_call(const char* function, Checks checks);
cudaError_t end_call(cudaError_t result, Checks checks) noexcept;

/// Every function of CUDA is `return call(__func__, checks, [&] { ...; return cudaSuccess; });`.
template <class Body>
cudaError_t call(const char* function, Checks checks, Body&& body) {
    if (const auto refused = begin_call(function, checks)) return end_call(*refused, checks);
    try {
        return end_call(body(), checks);
    } catch (const Refusal& refusal) {
        return end_call(refusal.error, checks);
    }
}

/// The same for functions of the driver, whose errors have the same numbers.
template <class Body>
CUresult driver_call(const char* function, Checks checks, Body&& body) {
    checks.remembers_error = false;
    return static_cast<CUresult>(call(function, checks, body));
}

/// The calling thread's last error.
cudaError_t last_error() noexcept;
void forget_last_error() noexcept;

/// Errors after which a device stays broken.
bool is_sticky(cudaError_t error) noexcept;

}  // namespace guozhuang::emulated_cuda
