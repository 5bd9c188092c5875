#include "wire/host_link.hpp"

#include <algorithm>
#include <cerrno>
#include <guozhuang/error.hpp>
#include <netinet/tcp.h>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include "base/keep_for_ever.hpp"
#include "wire/shm/shared_file.hpp"

namespace guozhuang::wire {
namespace {

using namespace std::chrono_literals;

constexpr auto time_for_an_address = 500ms;
constexpr char closed = '\0';

std::chrono::milliseconds time_until(base::Deadline deadline) noexcept {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - base::Clock::now()),
                    0ms);
}

bool becomes_ready(int descriptor, short event, base::Deadline deadline) noexcept {
    pollfd file{descriptor, event, 0};
    return base::wait_for_files({&file, 1}, time_until(deadline));
}

bool send_all(int descriptor, std::span<const char> bytes) noexcept {
    return ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
}

/// Whether the other end has sent the token, which arrives at once: it fits into any TCP segment.
bool shows_token(int descriptor, const Endpoint& endpoint) noexcept {
    decltype(endpoint.token) shown{};
    return ::recv(descriptor, shown.data(), sizeof shown, MSG_DONTWAIT) ==
               static_cast<ssize_t>(sizeof shown) &&
           shown == endpoint.token;
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

}  // namespace

HostLink::HostLink(std::unique_ptr<Socket> socket) noexcept : socket_(std::move(socket)) {
    set_options(descriptor());
}

HostLink::HostLink(const Endpoint& endpoint, base::Deadline deadline) {
    if (endpoint.port == 0) throw Error(ErrorCode::unavailable, "it does not listen");
    for (const auto address : endpoint.addresses) {
        if (address.s_addr == INADDR_ANY) continue;
        auto socket = std::make_unique<Socket>(Socket::open(SOCK_STREAM));
        const auto limit = std::min(deadline, base::Clock::now() + time_for_an_address);
        if (!connect(socket->descriptor(), address, endpoint.port, limit)) continue;
        set_options(socket->descriptor());
        const std::span token(reinterpret_cast<const char*>(endpoint.token.data()),
                              sizeof endpoint.token);
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

HostListener::HostListener() : socket_(Socket::open(SOCK_STREAM)), endpoint_(socket_.bind()) {
    if (::listen(socket_.descriptor(), SOMAXCONN) != 0) throw_unavailable("listen", errno);
}

std::shared_ptr<HostLink> HostListener::accept(base::Deadline deadline) {
    std::vector<std::unique_ptr<Socket>> callers;  // they have sent nothing yet
    std::vector<pollfd> files{{socket_.descriptor(), POLLIN, 0}};
    while (base::wait_for_files(files, time_until(deadline))) {
        for (std::size_t i = callers.size(); i-- > 0;) {
            if (files[i + 1].revents == 0) continue;
            if (shows_token(callers[i]->descriptor(), endpoint_))
                return std::make_shared<HostLink>(std::move(callers[i]));
            callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
            files.erase(files.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
        if (files.front().revents == 0) continue;
        const int descriptor =
            accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            continue;
        callers.push_back(std::make_unique<Socket>(descriptor));
        files.push_back({descriptor, POLLIN, 0});
    }
    throw Error(ErrorCode::unavailable, "it has not connected in time");
}

}  // namespace guozhuang::wire
