#include "wire/remote_bells.hpp"

#include <cerrno>
#include <fmt/format.h>
#include <sys/socket.h>
#include <utility>

#include "base/log.hpp"

namespace guozhuang::wire {

void RemoteBells::connect(int rank, std::vector<Endpoint> endpoints) {
    rank_ = rank;
    addresses_ = std::vector<std::atomic<in_addr_t>>(endpoints.size());
    unannounced_ = std::vector<std::atomic<std::uint32_t>>(endpoints.size());
    endpoints_ = std::move(endpoints);
}

void RemoteBells::send(int rank, base::Audience audience, bool wants_answer,
                       in_addr address) noexcept {
    const auto& endpoint = endpoints_[static_cast<std::size_t>(rank)];
    const Datagram datagram{.token = endpoint.token,
                            .from = rank_,
                            .audience = audience,
                            .wants_answer = wants_answer ? 1U : 0U};
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr = address;
    to.sin_port = endpoint.port;
    sendto(descriptor(), &datagram, sizeof datagram, MSG_DONTWAIT | MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

void RemoteBells::ring(int rank, base::Audience audience) noexcept {
    const auto& endpoint = endpoints_[static_cast<std::size_t>(rank)];
    if (endpoint.port == 0) return;
    if (has_heard(rank)) return send(rank, audience, false, {address_of(rank)});
    for (const auto address : endpoint.addresses)
        if (address.s_addr != INADDR_ANY) send(rank, audience, true, address);
}

void RemoteBells::count_message(int from) noexcept {
    constexpr std::uint32_t surely_silent = 100;  // even if the monitor has been late a few times
    const auto count = ++unannounced_[static_cast<std::size_t>(from)];
    if (count == most_unannounced) ++silent_ranks_;
    if (count == surely_silent)
        base::log_info(
            fmt::format("rank {}: the datagrams (UDP) of rank {} do not arrive: while it "
                        "waits for other hosts, it looks once a millisecond",
                        rank_, from));
}

bool RemoteBells::receive(base::Doorbell& bell) noexcept {
    constexpr int most_at_once = 256;  // a stranger may send without end
    base::Audience audience = 0;
    for (int each = 0; each < most_at_once; ++each) {
        Datagram datagram;
        sockaddr_in from{};
        socklen_t size = sizeof from;
        const auto count = recvfrom(descriptor(), &datagram, sizeof datagram, MSG_DONTWAIT,
                                    reinterpret_cast<sockaddr*>(&from), &size);
        if (count < 0 && errno != ECONNREFUSED && errno != EINTR) break;
        if (count != sizeof datagram || datagram.token != endpoint_.token || datagram.from < 0 ||
            !std::cmp_less(datagram.from, addresses_.size()))
            continue;
        addresses_[static_cast<std::size_t>(datagram.from)] = from.sin_addr.s_addr;
        audience |= datagram.audience;
        auto& unannounced = unannounced_[static_cast<std::size_t>(datagram.from)];
        if (datagram.audience != 0 && unannounced.exchange(0) >= most_unannounced) --silent_ranks_;
        if (datagram.wants_answer != 0) send(datagram.from, 0, false, from.sin_addr);
    }
    if (audience == 0 || bell.asleep(base::Sleepers::for_news) == 0) return false;
    base::nudge(bell, audience);
    return true;
}

}  // namespace guozhuang::wire
