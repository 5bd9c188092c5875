#pragma once

#include <array>
#include <cstdint>
#include <netinet/in.h>
#include <optional>

#include "base/process.hpp"

namespace guozhuang::wire {

/// Where a process can be reached, and the token that must be shown there. Plain bytes.
struct Endpoint {
    std::array<in_addr, 8> addresses{};  ///< of its host; 0.0.0.0: none
    in_port_t port = 0;                  ///< 0: it cannot be reached
    std::array<std::uint64_t, 2> token{};
};

/// An IPv4 socket. Children of fork() close it, so that they do not keep it open when this process
/// ends.
class Socket {
public:
    /// Opens one that does not block, for SOCK_STREAM or SOCK_DGRAM: its descriptor, -1 on failure.
    static int open(int type) noexcept;
    /// Takes over a descriptor; throws Error(unavailable), as errno says, if it is negative.
    explicit Socket(int descriptor);
    ~Socket();
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    int descriptor() const noexcept { return descriptor_; }
    /// Binds it to a free port at all addresses of this host; the token is new. Throws
    /// Error(unavailable).
    Endpoint bind() const;

private:
    const int descriptor_;
    std::optional<base::ForkChildHandler> fork_child_handler_;
};

}  // namespace guozhuang::wire
