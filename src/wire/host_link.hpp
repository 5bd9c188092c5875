#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/process.hpp"
#include "base/wait.hpp"

namespace guozhuang::wire {

/// A socket; closed in children of fork(), which would keep it open when this process has ended.
class Socket {
public:
    /// An IPv4 stream that does not block, or the given descriptor. Throws Error(unavailable).
    Socket();
    explicit Socket(int descriptor);
    ~Socket();
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    int descriptor() const noexcept { return descriptor_; }

private:
    const int descriptor_;
    const base::InChildren close_in_children_;
};

/// A TCP connection to a process of another host. It ends when that process does, however it ends, so it
/// tells of a death that nobody on that host is left to tell. Nothing else goes through it, but why a
/// process leaves, and that it has closed the link itself. A host that is cut off or without power ends
/// it after a minute and a half (keep-alive). One thread at a time, but for say().
class HostLink {
public:
    /// What both ends know of each other: the one that connects shows the first half, and the other one
    /// answers with the second.
    using Token = std::array<std::uint64_t, 4>;
    /// Where a process listens. Plain bytes.
    struct Offer {
        std::array<in_addr, 8> addresses{};  ///< 0.0.0.0: none
        in_port_t port = 0;                  ///< 0: it does not listen
        Token token{};
    };

    /// Tries each address. Throws Error(unavailable).
    HostLink(const Offer& offer, base::Deadline deadline);
    HostLink(HostLink&&) noexcept = default;
    /// Closes it: the other end is told that this is no death.
    ~HostLink();

    int descriptor() const noexcept { return socket_->descriptor(); }  ///< readable when there is something to look at
    /// Tells the other end why this process leaves, if there is room. Any thread.
    void say(std::string_view reason) noexcept;
    /// Whether the other end is gone, as far as one can see now.
    bool has_ended();
    // Once it has ended:
    bool was_closed() const noexcept { return heard_.ends_with(closed); }
    /// Why the process at the other end left; empty if it never said so.
    const std::string& reason() const noexcept { return heard_; }

private:
    friend class HostListener;
    explicit HostLink(std::unique_ptr<Socket> socket) noexcept : socket_(std::move(socket)) {}

    static constexpr char closed = '\0';

    std::unique_ptr<Socket> socket_;
    std::string heard_;
};

/// Waits for such a connection, for the time in which a session starts.
class HostListener {
public:
    /// On all addresses of this host. Throws Error(unavailable).
    HostListener();
    const HostLink::Offer& offer() const noexcept { return offer_; }
    /// The first that knows the token. Throws Error(unavailable) at the deadline.
    HostLink accept(base::Deadline deadline);

private:
    Socket socket_;
    HostLink::Offer offer_;
};

}  // namespace guozhuang::wire
