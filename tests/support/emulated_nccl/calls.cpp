#include "support/emulated_nccl/calls.hpp"

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unistd.h>

#include "support/emulated_nccl/configuration.hpp"

namespace guozhuang::emulated_nccl {
namespace {

thread_local const char* function_name = nullptr;
thread_local std::string error_text;

std::uint64_t count(const std::string& function) {
    static auto& mutex = *new std::mutex;
    static auto& calls = *new std::map<std::string, std::uint64_t>;
    const std::lock_guard lock(mutex);
    return ++calls[function];
}

}  // namespace

void break_rule(std::string_view text) noexcept {
    const auto line = "emulated NCCL: rule: " + std::string(text) + " (" +
                      (function_name ? function_name : "in a kernel") + ")\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) std::signal(SIGABRT, SIG_DFL);
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
}

std::optional<ncclResult_t> begin_call(const char* function) {
    function_name = function;
    const auto nth = count(function);
    const auto& configured = configuration();
    if (configured.failing_function != function || configured.failing_call != nth) return {};
    remember(std::string("emulated failure of ") + function);
    return ncclSystemError;
}

ncclResult_t end_call(ncclResult_t result) noexcept {
    function_name = nullptr;
    return result;
}

void remember(const std::string& error) {
    error_text = error;
}

const char* last_error() noexcept {
    return error_text.c_str();
}

}  // namespace guozhuang::emulated_nccl
