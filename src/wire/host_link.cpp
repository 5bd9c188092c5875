#include "wire/host_link.hpp"

#include <algorithm>
#include <cerrno>
#include <guozhuang/error.hpp>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <span>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/keep_for_ever.hpp"
#include "wire/shm/shared_file.hpp"

namespace guozhuang::wire {
namespace {

using namespace std::chrono_literals;

constexpr auto time_for_an_address = 500ms;
constexpr char closed = '\0';

bool becomes_ready(int descriptor, short event, base::Deadline deadline) noexcept {
    pollfd file{descriptor, event, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - base::Clock::now());
    return base::wait_for_files({&file, 1}, std::max(left, 0ms));
}

bool send_all(int descriptor, std::span<const char> bytes) noexcept {
    return ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
}

/// Whether the other end sends the token, which arrives at once: it fits into any TCP segment.
bool shows_token(int descriptor, const HostLink::Offer& offer, base::Deadline deadline) noexcept {
    decltype(offer.token) shown{};
    return becomes_ready(descriptor, POLLIN, deadline) &&
           ::recv(descriptor, shown.data(), sizeof shown, MSG_DONTWAIT) ==
               static_cast<ssize_t>(sizeof shown) &&
           shown == offer.token;
}

/// Makes bytes leave at once, and a silent host noticed after 30 s + 6 x 10 s.
void set_options(int descriptor) noexcept {
    const auto set = [descriptor](int level, int option, int value) {
        setsockopt(descriptor, level, option, &value, sizeof value);
    };
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

bool connect(int descriptor, in_addr address, in_port_t port, base::Deadline deadline) noexcept {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr = address;
    name.sin_port = port;
    if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0)
        return true;
    if (errno != EINPROGRESS || !becomes_ready(descriptor, POLLOUT, deadline)) return false;
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

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

Socket::Socket() : Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
Socket::Socket(int descriptor) try : descriptor_(descriptor) {
    if (descriptor < 0) throw_unavailable("socket", errno);
    fork_child_handler_.emplace([descriptor] { ::close(descriptor); });
} catch (...) {
    ::close(descriptor);
}
Socket::~Socket() {
    if (!base::is_forked()) ::close(descriptor_);
}

HostLink::HostLink(std::unique_ptr<Socket> socket) noexcept : socket_(std::move(socket)) {
    set_options(descriptor());
}

HostLink::HostLink(const Offer& offer, base::Deadline deadline) {
    if (offer.port == 0) throw Error(ErrorCode::unavailable, "it does not listen");
    for (const auto address : offer.addresses) {
        if (address.s_addr == INADDR_ANY) continue;
        auto socket = std::make_unique<Socket>();
        const auto limit = std::min(deadline, base::Clock::now() + time_for_an_address);
        if (!connect(socket->descriptor(), address, offer.port, limit)) continue;
        set_options(socket->descriptor());
        const std::span token(reinterpret_cast<const char*>(offer.token.data()),
                              sizeof offer.token);
        if (!send_all(socket->descriptor(), token)) continue;
        socket_ = std::move(socket);
        return;
    }
    throw Error(ErrorCode::unavailable, "none of its addresses can be reached");
}

HostLink::~HostLink() {
    if (!is_closed_) base::keep_for_ever(std::move(socket_));
}

void HostLink::say(std::string_view reason) noexcept {
    send_all(descriptor(), reason.substr(0, reason_.size()));
}

void HostLink::close() noexcept {
    if (!is_closed_.exchange(true)) send_all(descriptor(), {&closed, 1});
}

bool HostLink::has_ended() noexcept {
    std::array<char, trace::Note::capacity> bytes;
    while (true) {
        const auto count = ::recv(descriptor(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count <= 0) {
            if (count < 0 &&
                (errno == EAGAIN || errno == EINTR || errno == ENOMEM || errno == ENOBUFS))
                return false;
            error_ = count == 0 || errno == ECONNRESET ? 0 : errno;
            return true;
        }
        for (const char each : std::span(bytes).first(static_cast<std::size_t>(count))) {
            was_closed_ |= each == closed;
            if (!was_closed_ && reason_size_ < reason_.size()) reason_[reason_size_++] = each;
        }
    }
}

HostListener::HostListener() {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    socklen_t size = sizeof name;
    const auto* const any = reinterpret_cast<const sockaddr*>(&name);
    if (::bind(socket_.descriptor(), any, size) != 0 ||
        ::listen(socket_.descriptor(), SOMAXCONN) != 0)
        throw_unavailable("listen", errno);
    if (getsockname(socket_.descriptor(), reinterpret_cast<sockaddr*>(&name), &size) != 0)
        throw_unavailable("getsockname", errno);
    if (getrandom(offer_.token.data(), sizeof offer_.token, 0) !=
        static_cast<ssize_t>(sizeof offer_.token))
        throw_unavailable("getrandom", errno);
    list_addresses(offer_.addresses);
    offer_.port = name.sin_port;
}

std::shared_ptr<HostLink> HostListener::accept(base::Deadline deadline) {
    while (base::Clock::now() < deadline && becomes_ready(socket_.descriptor(), POLLIN, deadline)) {
        const int descriptor =
            accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            continue;
        auto socket = std::make_unique<Socket>(descriptor);
        const auto limit = std::min(deadline, base::Clock::now() + time_for_an_address);
        if (shows_token(descriptor, offer_, limit))
            return std::make_shared<HostLink>(std::move(socket));
    }
    throw Error(ErrorCode::unavailable, "it has not connected in time");
}

}  // namespace guozhuang::wire
