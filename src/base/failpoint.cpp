#include "base/failpoint.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "base/parse.hpp"
#include "base/wait.hpp"

namespace guozhuang::base {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Failpoint::count)> names = {
    "init",          "connect",      "handshake",       "submit",
    "control_send",  "control_sent", "control_arrived", "control_received",
    "execute",       "executed",     "segment_send",    "segment_receive",
    "round_publish", "round_await",  "payload_send",    "payload_receive",
    "shutdown",      "close",        "closed"};

constexpr std::array<std::string_view, 4> kinds = {"kill", "stop", "delay", "error"};

// Armed for the whole process, since it comes from the environment.
Fault armed;
std::atomic<std::uint64_t> passes{0};

/// Returns the text before the separator, and removes both from `text`. Without a separator it
/// takes all of it.
std::string_view take(std::string_view& text, char separator) {
    const auto part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
}

/// A stopped process cannot continue itself: a child process does it.
void stop_for(std::chrono::milliseconds time) {
    const auto self = getpid();
    const auto child = fork();
    if (child == 0) {
        wait_for_files({}, time);
        ::kill(self, SIGCONT);
        _exit(0);
    }
    if (child < 0)
        throw Error(ErrorCode::unavailable,
                    "failpoint: fork failed, so nobody would continue this rank");
    ::kill(self, SIGSTOP);
    waitpid(child, nullptr, 0);
}

void trigger(const Fault& fault) {
    switch (fault.kind) {
        case Fault::Kind::kill: ::kill(getpid(), SIGKILL); break;
        case Fault::Kind::stop: stop_for(std::chrono::milliseconds(fault.amount)); break;
        case Fault::Kind::delay:
            wait_for_files({}, std::chrono::milliseconds((fault.amount + 999) / 1000));
            break;
        case Fault::Kind::error:
            throw Error(ErrorCode::internal, fmt::format("failpoint {}", name_of(fault.point)));
    }
}

}  // namespace

std::atomic<Failpoint> armed_point{Failpoint::count};

std::string_view name_of(Failpoint point) noexcept {
    return names[static_cast<std::size_t>(point)];
}

std::optional<Fault> parse_fault(std::string_view text) {
    Fault fault;
    auto what = text;
    auto where = take(what, '=');
    if (!parse_choice(take(where, '@'), names, fault.point) ||
        !parse_choice(take(what, ':'), kinds, fault.kind))
        return std::nullopt;
    fault.rank = parse_number<int>(take(where, ':')).value_or(-1);
    fault.nth = parse_number<std::uint64_t>(where).value_or(0);
    fault.amount = parse_number<std::uint64_t>(what).value_or(0);
    const bool is_in_range = fault.rank >= 0 && fault.nth > 0 && fault.amount <= 1'000'000'000;
    // A text that was not read as numbers prints differently.
    if (!is_in_range || print(fault) != text) return std::nullopt;
    return fault;
}

std::string print(const Fault& fault) {
    auto text = fmt::format("{}@{}:{}={}", name_of(fault.point), fault.rank, fault.nth,
                            kinds[static_cast<std::size_t>(fault.kind)]);
    if (fault.kind == Fault::Kind::stop || fault.kind == Fault::Kind::delay)
        text += fmt::format(":{}", fault.amount);
    return text;
}

void arm(const std::optional<Fault>& fault) noexcept {
    if (fault) armed = *fault;
    passes.store(0);
    armed_point.store(fault ? fault->point : Failpoint::count);
}

void count_pass() {
    if (passes.fetch_add(1) + 1 == armed.nth) trigger(armed);
}

}  // namespace guozhuang::base
