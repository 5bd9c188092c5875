#include "wire/host_link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <span>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

namespace guozhuang::wire {
namespace {

using namespace std::chrono_literals;

constexpr auto time_for_an_address = 500ms, time_for_an_answer = 2000ms;
constexpr std::size_t longest_reason = 4096;

[[noreturn]] void throw_unavailable(std::string_view what) {
    throw Error(ErrorCode::unavailable, fmt::format("{}: {}", what, std::strerror(errno)));
}

bool becomes_ready(int descriptor, short event, base::Deadline deadline) noexcept {
    pollfd file{descriptor, event, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - base::Clock::now());
    return base::wait_for_files({&file, 1}, std::max(left, 0ms));
}

template <class Half>
bool send_half(int descriptor, const Half& half) noexcept {
    return ::send(descriptor, half.data(), half.size_bytes(), MSG_NOSIGNAL) == static_cast<ssize_t>(half.size_bytes());
}

/// Whether the other end says so. Half a token fits every segment.
template <class Half>
bool receives_half(int descriptor, const Half& expected, base::Deadline deadline) noexcept {
    std::array<std::uint64_t, 2> half{};
    return becomes_ready(descriptor, POLLIN, deadline) &&
           ::recv(descriptor, half.data(), sizeof half, MSG_WAITALL) == static_cast<ssize_t>(sizeof half) &&
           std::ranges::equal(half, expected);
}

void keep_alive(int descriptor) noexcept {
    const auto set = [descriptor](int level, int option, int value) { setsockopt(descriptor, level, option, &value, sizeof value); };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

bool is_connected(int descriptor, in_addr address, in_port_t port, base::Deadline deadline) noexcept {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr = address;
    name.sin_port = port;
    if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return true;
    if (errno != EINPROGRESS || !becomes_ready(descriptor, POLLOUT, deadline)) return false;
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

/// Of this host, those behind which there may be others first.
void list_addresses(std::span<in_addr> addresses) {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) throw_unavailable("getifaddrs");
    auto next = addresses.begin();
    for (const bool loopback : {false, true}) {
        for (const auto* each = list; each != nullptr && next != addresses.end(); each = each->ifa_next) {
            if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_UP) == 0) continue;
            if (((each->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
            *next++ = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
        }
    }
    freeifaddrs(list);
}

}  // namespace

Socket::Socket() : Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
Socket::Socket(int descriptor) : descriptor_(descriptor), close_in_children_([descriptor] { ::close(descriptor); }) {
    if (descriptor < 0) throw_unavailable("socket");
}
Socket::~Socket() {
    if (!base::is_forked()) ::close(descriptor_);
}

HostLink::HostLink(const Offer& offer, base::Deadline deadline) {
    for (const auto address : offer.addresses) {
        if (address.s_addr == INADDR_ANY || offer.port == 0) continue;
        auto socket = std::make_unique<Socket>();
        const auto token = std::span(offer.token);
        if (!is_connected(socket->descriptor(), address, offer.port, std::min(deadline, base::Clock::now() + time_for_an_address)))
            continue;
        if (!send_half(socket->descriptor(), token.first<2>())) continue;
        const auto limit = std::min(deadline, base::Clock::now() + time_for_an_answer);
        if (!receives_half(socket->descriptor(), token.last<2>(), limit)) continue;
        keep_alive(socket->descriptor());
        socket_ = std::move(socket);
        return;
    }
    throw Error(ErrorCode::unavailable, "none of its addresses can be reached");
}

HostLink::~HostLink() {
    if (socket_ && !base::is_forked()) say({&closed, 1});
}

void HostLink::say(std::string_view reason) noexcept {
    static_cast<void>(::send(descriptor(), reason.data(), std::min(reason.size(), longest_reason), MSG_NOSIGNAL | MSG_DONTWAIT));
}

bool HostLink::has_ended() {
    std::array<char, 512> bytes;
    while (true) {
        const auto count = ::recv(descriptor(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        heard_.append(bytes.data(), std::min(static_cast<std::size_t>(count), longest_reason - std::min(heard_.size(), longest_reason)));
    }
}

HostListener::HostListener() {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    socklen_t size = sizeof name;
    const auto* const any = reinterpret_cast<const sockaddr*>(&name);
    if (::bind(socket_.descriptor(), any, size) != 0 || ::listen(socket_.descriptor(), 8) != 0) throw_unavailable("listen");
    if (getsockname(socket_.descriptor(), reinterpret_cast<sockaddr*>(&name), &size) != 0) throw_unavailable("getsockname");
    if (getrandom(offer_.token.data(), sizeof offer_.token, 0) != static_cast<ssize_t>(sizeof offer_.token)) throw_unavailable("getrandom");
    list_addresses(offer_.addresses);
    offer_.port = name.sin_port;
}

HostLink HostListener::accept(base::Deadline deadline) {
    const auto token = std::span<const std::uint64_t, 4>(offer_.token);
    while (becomes_ready(socket_.descriptor(), POLLIN, deadline)) {
        const int descriptor = accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0) continue;
        auto socket = std::make_unique<Socket>(descriptor);
        const auto limit = std::min(deadline, base::Clock::now() + time_for_an_address);
        if (!receives_half(descriptor, token.first<2>(), limit) || !send_half(descriptor, token.last<2>())) continue;
        keep_alive(descriptor);
        return HostLink(std::move(socket));
    }
    throw Error(ErrorCode::unavailable, "it has not connected in time");
}

}  // namespace guozhuang::wire
