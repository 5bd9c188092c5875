#include "wire/socket.hpp"

#include <cerrno>
#include <ifaddrs.h>
#include <net/if.h>
#include <span>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire/shm/shared_file.hpp"

namespace guozhuang::wire {
namespace {

/// Lists this host's addresses, starting with networks that may have other hosts.
void list_addresses(std::span<in_addr> addresses) {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) throw_unavailable("getifaddrs", errno);
    auto next = addresses.begin();
    for (const bool loopback : {false, true}) {
        for (const auto* each = list; each != nullptr && next != addresses.end();
             each = each->ifa_next) {
            if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET ||
                (each->ifa_flags & IFF_UP) == 0)
                continue;
            if (((each->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
            *next++ = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
        }
    }
    freeifaddrs(list);
}

}  // namespace

int Socket::open(int type) noexcept {
    return ::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

Socket::Socket(int descriptor) try : descriptor_(descriptor) {
    if (descriptor < 0) throw_unavailable("socket", errno);
    fork_child_handler_.emplace([descriptor] { ::close(descriptor); });
} catch (...) {
    ::close(descriptor);
}

Socket::~Socket() {
    if (!base::is_forked()) ::close(descriptor_);
}

Endpoint Socket::bind() const {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    socklen_t size = sizeof name;
    auto* const any = reinterpret_cast<sockaddr*>(&name);
    if (::bind(descriptor_, any, size) != 0) throw_unavailable("bind", errno);
    if (getsockname(descriptor_, any, &size) != 0) throw_unavailable("getsockname", errno);
    Endpoint endpoint;
    endpoint.port = name.sin_port;
    if (getrandom(endpoint.token.data(), sizeof endpoint.token, 0) !=
        static_cast<ssize_t>(sizeof endpoint.token))
        throw_unavailable("getrandom", errno);
    list_addresses(endpoint.addresses);
    return endpoint;
}

}  // namespace guozhuang::wire
