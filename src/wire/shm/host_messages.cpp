#include "wire/shm/host_messages.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <utility>

namespace guozhuang::wire {
HostMessages::HostMessages(const MessageRings& rings, std::span<const Peer> peers, int position) {
    for (int other = 0; other < rings.ranks; ++other) {
        const auto& peer = peers[static_cast<std::size_t>(other)];
        neighbours_.push_back({.rank = peer.rank,
                               .bell = peer.bell,
                               .out = {rings.ring(position, other), rings.bytes(position, other)},
                               .in = {rings.ring(other, position), rings.bytes(other, position)}});
    }
}

void HostMessages::send(int to, std::uint32_t channel, std::span<const std::byte> bytes,
                        base::Audience audience) {
    const Head head{.bytes = static_cast<std::uint32_t>(bytes.size()), .channel = channel};
    const auto head_bytes = std::as_bytes(std::span(&head, 1));
    const base::Lock lock(mutex_);
    auto& peer = *std::ranges::lower_bound(neighbours_, to, {}, &Neighbour::rank);
    if (peer.backlog.empty() && peer.out.has_room(sizeof head + bytes.size())) {
        peer.out.put(head_bytes);
        peer.out.put(bytes);
        peer.out.publish();
        base::nudge(peer.bell, audience);
        return;
    }
    const bool first = peer.backlog.empty();
    const auto needed = peer.backlog.size() + head_bytes.size() + bytes.size();
    // Room for the whole message comes first: it is queued whole, or not at all.
    if (needed > peer.backlog.capacity())
        peer.backlog.reserve(std::max(needed, 2 * peer.backlog.capacity()));
    peer.backlog.insert(peer.backlog.end(), head_bytes.begin(), head_bytes.end());
    peer.backlog.insert(peer.backlog.end(), bytes.begin(), bytes.end());
    if (first) ++backlogs_;
    flush_all();
}

/// As much as there is room for.
bool HostMessages::flush(Neighbour& peer) {
    while (peer.sent < peer.backlog.size() && peer.out.has_room(1)) {
        const auto rest = std::span(peer.backlog).subspan(peer.sent);
        const auto some = rest.first(std::min(peer.out.room(), rest.size()));
        peer.out.put(some);
        peer.out.publish();
        base::ring_local(peer.bell);
        peer.sent += some.size();
    }
    if (peer.sent < peer.backlog.size()) return false;
    peer.backlog.clear();
    peer.sent = 0;
    return true;
}

bool HostMessages::flush_all() {
    if (backlogs_ == 0) return true;
    for (auto& peer : neighbours_)
        if (!peer.backlog.empty() && flush(peer)) --backlogs_;
    return backlogs_ == 0;
}

bool HostMessages::flush() {
    const base::Lock lock(mutex_);
    return flush_all();
}

void HostMessages::discard() {
    const base::Lock lock(mutex_);
    flush_all();
    for (auto& peer : neighbours_) {
        peer.in.skip();
        if (peer.in.release()) base::ring_local(peer.bell);
    }
}

/// Whether a message of that rank is whole.
bool HostMessages::receive(Neighbour& peer) {
    const auto head = std::as_writable_bytes(std::span(&peer.head, 1));
    while (peer.in.available() > 0) {
        if (peer.arrived < head.size()) {
            peer.arrived += peer.in.take(head.subspan(peer.arrived));
            if (peer.arrived == head.size() && peer.head.bytes > max_control_bytes)
                throw Error(ErrorCode::wire,
                            fmt::format("rank {} sent a control message of {} bytes", peer.rank,
                                        peer.head.bytes),
                            {.ranks = {peer.rank}});
            if (peer.arrived == head.size()) peer.message.resize(peer.head.bytes);
        }
        if (peer.arrived >= head.size())
            peer.arrived +=
                peer.in.take(std::span(peer.message).subspan(peer.arrived - head.size()));
        if (peer.in.release()) base::ring_local(peer.bell);
        if (peer.arrived >= head.size() && peer.arrived == head.size() + peer.message.size())
            return true;
    }
    return false;
}

std::optional<Messages::Message> HostMessages::poll(std::uint32_t channel,
                                                    std::optional<int> from) {
    const base::Lock lock(mutex_);
    flush_all();
    const auto is_wanted = [&](const Messages::Message& message) {
        return !from || message.from == *from;
    };
    if (const auto waiting = arrived_.find(channel); waiting != arrived_.end()) {
        if (const auto first = std::ranges::find_if(waiting->second, is_wanted);
            first != waiting->second.end()) {
            auto message = std::move(*first);
            waiting->second.erase(first);
            if (waiting->second.empty()) arrived_.erase(waiting);
            return message;
        }
    }
    for (auto& peer : neighbours_) {
        while (receive(peer)) {
            peer.arrived = 0;
            Messages::Message message{peer.rank, std::exchange(peer.message, {})};
            if (peer.head.channel == channel && is_wanted(message)) return message;
            arrived_[peer.head.channel].push_back(std::move(message));
        }
    }
    return std::nullopt;
}

}  // namespace guozhuang::wire
