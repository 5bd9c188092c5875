#include "support/emulated_cuda/rules.hpp"

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/ucontext.h>
#include <unistd.h>
#include <utility>

#include "support/emulated_cuda/protection.hpp"
#include "support/runner/sanitizer.hpp"

namespace guozhuang::emulated_cuda {
namespace {

thread_local const char* function_name = nullptr;

/// The handler of SIGSEGV or of SIGILL that on_fault() has replaced.
struct sigaction& handler_before(int signal) {
    static struct sigaction of_fault {
    }, of_trap{};
    return signal == SIGILL ? of_trap : of_fault;
}

void say(std::string_view text) noexcept {
    while (!text.empty()) {
        const auto written = ::write(STDERR_FILENO, text.data(), text.size());
        if (written <= 0) return;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

std::string_view rule_of(const siginfo_t& fault) noexcept {
    if (fault.si_code == SEGV_PKUERR)
        return is_stream_thread() ? "a kernel touched memory of a device without peer access"
                                  : "a host thread touched device memory";
    return is_stream_thread() ? "a kernel or copy reached beyond the end of device memory"
                              : "a host thread touched device memory, freed or beyond its end";
}

void on_fault(int signal, siginfo_t* fault, void* context) {
    if (signal == SIGILL && is_stream_thread())
        break_rule("a kernel read or wrote memory at an address that is not aligned");
    if (in_device_addresses(fault->si_addr)) break_rule(rule_of(*fault));
    // The handler from before may put this one back and raise the signal: only once, then.
    const auto before = std::exchange(handler_before(signal), {});
    if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction)
        before.sa_sigaction(signal, fault, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
    else
        std::signal(signal, SIG_DFL);
}

}  // namespace

void enter_function(const char* name) noexcept {
    function_name = name;
}

void break_rule(std::string_view text) noexcept {
    say("emulated CUDA: rule: ");
    say(text);
    say(" (");
    say(function_name ? function_name : "outside of any function of CUDA");
    say(")\n");
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
}

void watch_faults() {
    if (test::under_sanitizer) return;
    for (const int signal : {SIGSEGV, SIGILL}) {
        struct sigaction current {};
        sigaction(signal, nullptr, &current);
        if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_fault) continue;
        struct sigaction ours {};
        ours.sa_sigaction = on_fault;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        handler_before(signal) = current;
        sigaction(signal, &ours, nullptr);
    }
}

}  // namespace guozhuang::emulated_cuda
