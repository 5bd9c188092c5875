#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/socket.hpp"

namespace guozhuang::wire {

/// A TCP connection to a process of another host. The kernel ends it when that process ends, in
/// whatever way, so it reveals a death that nobody on that host is left to report. Only two
/// messages go through it: why a process quits, and that it has closed its session. If the host is
/// cut off or loses power, the link ends after a while (keep-alive). A process that is stopped
/// keeps it, since its kernel answers.
class HostLink {
public:
    /// For the rank that calls it. Tries each address in turn, and then once more. The kernel there
    /// connects before a process accepts, and that may be another one: see is_accepted(). Throws
    /// Error(unavailable).
    HostLink(const Endpoint& endpoint, int rank, base::Deadline deadline);
    /// A connection that a HostListener has accepted.
    explicit HostLink(std::unique_ptr<Socket> socket) noexcept;
    /// If close() was not called, the socket stays open until the process ends.
    ~HostLink();
    HostLink(const HostLink&) = delete;
    HostLink& operator=(const HostLink&) = delete;

    /// On the side that has connected: whether the other one accepts in time.
    bool is_accepted(base::Deadline deadline) noexcept;
    /// If it is not accepted: the other end without this address.
    const Endpoint& rest() const noexcept { return rest_; }
    /// After this time without an answer from the other host the link ends; 0: never. Until then,
    /// and if the system does not know the option, that is up to the system.
    void limit_silence(std::chrono::milliseconds limit) noexcept;

    // Any thread:
    /// Readable when has_ended() should be called.
    int descriptor() const noexcept { return socket_->descriptor(); }
    /// Tells the other end why this process quits, if the socket has room. Cuts a long reason.
    void say(std::string_view reason) noexcept;
    /// Tells the other end that this process has closed its session, so that its end is not taken
    /// for a death.
    void close() noexcept;

    // One thread at a time:
    /// Whether the other end is gone, as far as this host knows.
    bool has_ended() noexcept;
    // Once it has ended:
    bool was_closed() const noexcept { return was_closed_; }
    /// Why the process at the other end has quit; empty if it has not said so.
    std::string_view reason() const noexcept { return {reason_.data(), reason_size_}; }
    /// An errno if the network ended the link; 0 if the other process did.
    int error() const noexcept { return error_; }

private:
    std::unique_ptr<Socket> socket_;
    Endpoint rest_;
    std::atomic<bool> is_closed_{false};
    std::array<char, trace::Note::capacity> reason_;
    std::size_t reason_size_ = 0;
    bool has_ended_ = false;
    bool was_closed_ = false;
    int error_ = 0;
};

/// Waits for a HostLink's connection while a session starts.
class HostListener {
public:
    /// Listens on all IPv4 addresses of this host. Throws Error(unavailable).
    HostListener();
    const Endpoint& endpoint() const noexcept { return endpoint_; }
    /// Returns the next rank that connects and sends the token, and its link, whoever else connects
    /// and is silent. Throws Error(unavailable).
    std::pair<int, std::shared_ptr<HostLink>> accept(base::Deadline deadline);

private:
    Socket socket_;
    Endpoint endpoint_;
    std::vector<std::unique_ptr<Socket>> callers_;  ///< they have sent nothing yet
};

}  // namespace guozhuang::wire
