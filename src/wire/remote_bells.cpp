#include "wire/remote_bells.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <fmt/format.h>
#include <sys/socket.h>
#include <utility>

#include "base/log.hpp"

namespace guozhuang::wire {

using namespace std::chrono_literals;

void RemoteBells::connect(int rank, std::vector<Endpoint> endpoints) {
    rank_ = rank;
    addresses_ = std::vector<std::atomic<in_addr_t>>(endpoints.size());
    unannounced_ = std::vector<std::atomic<std::uint32_t>>(endpoints.size());
    endpoints_ = std::move(endpoints);
}

/// To where the rank has been heard, or else to all addresses of its host.
void RemoteBells::send(int rank, Datagram datagram) noexcept {
    const auto& endpoint = endpoints_[static_cast<std::size_t>(rank)];
    if (endpoint.port == 0) return;
    if (has_heard(rank)) return send_to({address_of(rank)}, rank, datagram);
    datagram.wants_answer = 1;
    for (const auto address : endpoint.addresses)
        if (address.s_addr != INADDR_ANY) send_to(address, rank, datagram);
}

void RemoteBells::send_to(in_addr address, int rank, Datagram datagram,
                          std::string_view text) noexcept {
    const auto& endpoint = endpoints_[static_cast<std::size_t>(rank)];
    datagram.token = endpoint.token;
    datagram.from = rank_;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr = address;
    to.sin_port = endpoint.port;
    iovec parts[] = {{&datagram, sizeof datagram}, {const_cast<char*>(text.data()), text.size()}};
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    sendmsg(descriptor(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void RemoteBells::ring(int rank, base::Audience audience) noexcept {
    send(rank, {.audience = audience});
}

std::optional<trace::RankStatus> RemoteBells::ask(int rank, std::span<const int> there) {
    constexpr auto between_questions = 20ms, time_to_answer = 1000ms, longest_use = 500ms;
    constexpr std::uint32_t in_one_packet = 1400;  // a network may lose all fragments
    const auto now = base::Clock::now();
    const base::Lock lock(mutex_);
    auto& inquiry = inquiries_[rank];
    if (now - inquiry.asked > time_to_answer) inquiry = {};
    if (now - inquiry.asked > between_questions) {
        inquiry.asked = now;
        const auto turn = inquiry.count++;
        if (turn == 0) inquiry.since = now;
        send(there[turn % there.size()],
             {.room = turn < 2 ? most_bytes : in_one_packet, .about = rank});
    }
    if (inquiry.status && now - inquiry.answered < longest_use) return inquiry.status;
    if (now - inquiry.since < time_to_answer) return trace::RankStatus{.is_awaited = true};
    if (std::ranges::any_of(there, [this](int each) { return has_heard(each); }))
        return trace::RankStatus{};
    return std::nullopt;
}

void RemoteBells::answer(const Datagram& question, in_addr address, const LookAt& look_at) noexcept
    try {
    const auto room = std::clamp(question.room, 1000U, most_bytes);
    if (const auto status = look_at(question.about))
        send_to(address, question.from, {.about = question.about}, encode(*status, room));
} catch (const std::exception&) {  // no memory: the question comes again
}

void RemoteBells::take_answer(int about, std::string_view text) noexcept try {
    const base::Lock lock(mutex_);
    const auto inquiry = inquiries_.find(about);
    auto status = trace::decode(text);
    if (inquiry == inquiries_.end() || !status) return;
    const auto asked = inquiry->second.asked, now = base::Clock::now();
    inquiry->second = {.asked = asked, .since = now, .answered = now, .status = std::move(status)};
} catch (const std::exception&) {  // likewise
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

bool RemoteBells::receive(base::Doorbell& bell, const LookAt& look_at) noexcept {
    constexpr int most_at_once = 256;  // a stranger may send without end
    base::Audience audience = 0;
    for (int each = 0; each < most_at_once; ++each) {
        struct {
            Datagram datagram;
            std::array<char, most_bytes> text;
        } mail;
        const auto& datagram = mail.datagram;
        sockaddr_in from{};
        socklen_t size = sizeof from;
        const auto count = recvfrom(descriptor(), &mail, sizeof mail, MSG_DONTWAIT,
                                    reinterpret_cast<sockaddr*>(&from), &size);
        if (count < 0 && errno != ECONNREFUSED && errno != EINTR) break;
        if (std::cmp_less(count, sizeof datagram) || datagram.token != endpoint_.token ||
            datagram.from < 0 || !std::cmp_less(datagram.from, addresses_.size()))
            continue;
        addresses_[static_cast<std::size_t>(datagram.from)] = from.sin_addr.s_addr;
        audience |= datagram.audience;
        auto& unannounced = unannounced_[static_cast<std::size_t>(datagram.from)];
        if (datagram.audience != 0 && unannounced.exchange(0) >= most_unannounced) --silent_ranks_;
        if (datagram.wants_answer != 0) send_to(from.sin_addr, datagram.from, {});
        const std::string_view text(mail.text.data(),
                                    static_cast<std::size_t>(count) - sizeof datagram);
        if (datagram.room != 0)
            answer(datagram, from.sin_addr, look_at);
        else if (datagram.about >= 0)
            take_answer(datagram.about, text);
    }
    if (audience == 0 || bell.asleep(base::Sleepers::for_news) == 0) return false;
    base::nudge(bell, audience);
    return true;
}

}  // namespace guozhuang::wire
