#include "support/emulated_cuda/calls.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

#include "support/emulated_cuda/capture.hpp"
#include "support/emulated_cuda/configuration.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/emulated_cuda/rules.hpp"
#include "support/emulated_cuda/streams.hpp"

namespace guozhuang::emulated_cuda {
namespace {

thread_local cudaError_t last = cudaSuccess;

/// How often each function has been called in this process.
class Counts {
public:
    std::uint64_t count(const std::string& function) {
        const std::lock_guard lock(mutex_);
        ++total_;
        return ++calls_[function];
    }
    std::uint64_t total() const noexcept { return total_; }
    std::uint64_t of(const std::string& function) {
        const std::lock_guard lock(mutex_);
        return calls_[function];
    }
    void write(const std::string& path) {
        const std::lock_guard lock(mutex_);
        std::ofstream file(path);
        for (const auto& [function, calls] : calls_) file << calls << ' ' << function << '\n';
    }

private:
    std::mutex mutex_;
    std::map<std::string, std::uint64_t> calls_;
    std::atomic<std::uint64_t> total_ = 0;
};

Counts& counts() {
    static auto& all = *new Counts;
    return all;
}

/// At exit, of a process that called nothing, too.
__attribute__((destructor)) void write_trace() {
    if (const auto& prefix = configuration().trace; !prefix.empty())
        counts().write(prefix + "." + std::to_string(::getpid()));
}

/// The name that programs use, of which the toolkit's headers make one with a version.
std::string plain(std::string_view function) {
    if (function.ends_with("_v2")) function.remove_suffix(3);
    return std::string(function);
}

/// A stopped process cannot continue itself: a child process does it.
void stop_for(int ms) {
    const auto self = ::getpid();
    const auto child = ::fork();
    if (child < 0) break_rule("fork failed, so nobody would continue this process");
    if (child == 0) {
        ::poll(nullptr, 0, ms);
        ::kill(self, SIGCONT);
        ::_exit(0);
    }
    ::kill(self, SIGSTOP);
    ::waitpid(child, nullptr, 0);
}

std::optional<cudaError_t> injected_failure(const std::string& function, std::uint64_t nth) {
    const auto& configured = configuration();
    if (configured.failing_call != nth || configured.failing_function != function) return {};
    if (configured.failure_kills) ::kill(::getpid(), SIGKILL);
    if (configured.stop_ms > 0) {
        stop_for(configured.stop_ms);
        return {};
    }
    const auto error = static_cast<cudaError_t>(configured.failure);
    if (is_sticky(error) && !devices().empty()) current_device().break_with(error);
    return error;
}

}  // namespace

bool is_sticky(cudaError_t error) noexcept {
    return error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout ||
           error == cudaErrorAssert || error == cudaErrorECCUncorrectable ||
           (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
}

std::optional<cudaError_t> begin_call(const char* function, Checks checks) {
    enter_function(function);
    const auto name = plain(function);
    const auto nth = counts().count(name);
    if (in_host_function()) break_rule("a host function that a stream runs called CUDA");
    if (auto error = injected_failure(name, nth)) return error;
    if (!checks.device) return {};
    if (const auto problem = problem_with_driver(); problem != cudaSuccess) return problem;
    const auto* chosen = current_device_or_null();
    if (const auto& device = chosen ? *chosen : *devices().front(); device.broken())
        return device.error();
    if (checks.unsafe && invalidate_captures()) return cudaErrorStreamCaptureUnsupported;
    return {};
}

cudaError_t end_call(cudaError_t result, Checks checks) noexcept {
    if (result != cudaSuccess && result != cudaErrorNotReady && checks.remembers_error)
        last = result;
    enter_function(nullptr);
    return result;
}

cudaError_t last_error() noexcept {
    const auto* device = current_device_or_null();
    return device && device->broken() ? device->error() : last;
}

void forget_last_error() noexcept {
    last = cudaSuccess;
}

}  // namespace guozhuang::emulated_cuda

std::uint64_t emulated_cuda_calls() {
    return guozhuang::emulated_cuda::counts().total();
}

std::uint64_t emulated_cuda_calls_of(const char* function) {
    return guozhuang::emulated_cuda::counts().of(function);
}

void emulated_cuda_break_device(int device) {
    using namespace guozhuang::emulated_cuda;
    if (auto* broken = device_or_null(device)) broken->break_with(cudaErrorIllegalAddress);
}
