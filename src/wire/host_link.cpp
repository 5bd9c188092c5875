#include "wire/host_link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <netinet/tcp.h>
#include <optional>
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

/// For an address, first and second time: the kernel sends a lost packet again after a second.
constexpr std::array times_to_connect = {500ms, 1500ms};
/// Strangers that are silent; if there are more, the oldest go.
constexpr std::size_t most_callers = 64;
constexpr char closed = '\0', accepted = '\6';

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

/// The first bytes of the side that connects, as they lie in memory. They arrive at once: they fit
/// into any TCP segment.
struct Greeting {
    decltype(Endpoint::token) token{};
    std::int32_t rank = 0;
};

/// The rank that has connected; empty: it is a stranger.
std::optional<int> caller_of(int descriptor, const Endpoint& endpoint) noexcept {
    Greeting greeting;
    const auto count = ::recv(descriptor, &greeting, sizeof greeting, MSG_DONTWAIT);
    if (count != sizeof greeting || greeting.token != endpoint.token) return {};
    return greeting.rank;
}

bool set_option(int descriptor, int level, int option, int value) noexcept {
    return setsockopt(descriptor, level, option, &value, sizeof value) == 0;
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
    set_option(descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
    send_all(descriptor(), {&accepted, 1});
}

HostLink::HostLink(const Endpoint& endpoint, int rank, base::Deadline deadline) : rest_(endpoint) {
    if (endpoint.port == 0) throw Error(ErrorCode::unavailable, "it does not listen");
    const Greeting greeting{.token = endpoint.token, .rank = rank};
    for (const auto time : times_to_connect) {
        for (auto& address : rest_.addresses) {
            if (address.s_addr == INADDR_ANY) continue;
            auto socket = std::make_unique<Socket>(Socket::open(SOCK_STREAM));
            const auto limit = std::min(deadline, base::Clock::now() + time);
            if (!connect(socket->descriptor(), address, endpoint.port, limit)) continue;
            set_option(socket->descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
            if (!send_all(socket->descriptor(),
                          {reinterpret_cast<const char*>(&greeting), sizeof greeting}))
                continue;
            address = {};
            socket_ = std::move(socket);
            return;
        }
    }
    throw Error(ErrorCode::unavailable, "it answers at none of its addresses");
}

HostLink::~HostLink() {
    if (!is_closed_) base::keep_for_ever(std::move(socket_));
}

bool HostLink::is_accepted(base::Deadline deadline) noexcept {
    char answer = closed;
    return becomes_ready(descriptor(), POLLIN, deadline) &&
           ::recv(descriptor(), &answer, 1, MSG_DONTWAIT) == 1 && answer == accepted;
}

/// Asks after half of the limit, then some times more in the other half.
void HostLink::limit_silence(std::chrono::milliseconds limit) noexcept {
    if (limit.count() == 0) return;
    constexpr auto longest = 30'000s;  // of the option for the first question
    const auto seconds = static_cast<int>(
        std::min<std::chrono::seconds>(std::chrono::ceil<std::chrono::seconds>(limit), longest)
            .count());
    const int interval = std::max(1, seconds / 20);
    const int descriptor = this->descriptor();
    set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, interval);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, std::max(1, seconds / 2 / interval));
    set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);
}

void HostLink::say(std::string_view reason) noexcept {
    send_all(descriptor(), reason.substr(0, reason_.size()));
}

void HostLink::close() noexcept {
    if (!is_closed_.exchange(true)) send_all(descriptor(), {&closed, 1});
}

bool HostLink::has_ended() noexcept {
    std::array<char, trace::Note::capacity> bytes;
    while (!has_ended_) {  // the system tells the error once
        const auto count = ::recv(descriptor(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count <= 0) {
            if (count < 0 &&
                (errno == EAGAIN || errno == EINTR || errno == ENOMEM || errno == ENOBUFS))
                return false;
            error_ = count == 0 || errno == ECONNRESET ? 0 : errno;
            has_ended_ = true;
            break;
        }
        for (const char each : std::span(bytes).first(static_cast<std::size_t>(count))) {
            was_closed_ |= each == closed;
            if (!was_closed_ && reason_size_ < reason_.size()) reason_[reason_size_++] = each;
        }
    }
    return true;
}

HostListener::HostListener() : socket_(Socket::open(SOCK_STREAM)), endpoint_(socket_.bind()) {
    if (::listen(socket_.descriptor(), SOMAXCONN) != 0) throw_unavailable("listen", errno);
}

std::pair<int, std::shared_ptr<HostLink>> HostListener::accept(base::Deadline deadline) {
    while (base::Clock::now() < deadline) {
        std::vector<pollfd> files{{socket_.descriptor(), POLLIN, 0}};
        for (const auto& caller : callers_) files.push_back({caller->descriptor(), POLLIN, 0});
        if (!base::wait_for_files(files, time_until(deadline))) break;
        for (std::size_t i = callers_.size(); i-- > 0;) {
            if (files[i + 1].revents == 0) continue;
            auto caller = std::move(callers_[i]);
            callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
            if (const auto rank = caller_of(caller->descriptor(), endpoint_))
                return {*rank, std::make_shared<HostLink>(std::move(caller))};
        }
        if (files.front().revents == 0) continue;
        if (callers_.size() == most_callers) callers_.erase(callers_.begin());
        const int descriptor =
            accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            continue;
        callers_.push_back(std::make_unique<Socket>(descriptor));
    }
    throw Error(ErrorCode::unavailable, "it has not connected in time");
}

}  // namespace guozhuang::wire
