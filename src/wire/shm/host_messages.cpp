#include "wire/shm/host_messages.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <utility>

namespace guozhuang::wire {
HostMessages::HostMessages(const MessageRings& rings, std::span<const HostRank> host_ranks,
                           int local_rank) {
    for (int other = 0; other < rings.ranks; ++other) {
        const auto& host_rank = host_ranks[static_cast<std::size_t>(other)];
        ring_pairs_.push_back(
            {.rank = host_rank.rank,
             .bell = host_rank.bell,
             .out = {rings.ring(local_rank, other), rings.bytes(local_rank, other)},
             .in = {rings.ring(other, local_rank), rings.bytes(other, local_rank)}});
    }
}

void HostMessages::send(int to, std::uint32_t channel, std::span<const std::byte> bytes,
                        base::Audience audience) {
    const Head head{.bytes = static_cast<std::uint32_t>(bytes.size()), .channel = channel};
    const auto head_bytes = std::as_bytes(std::span(&head, 1));
    const base::Lock lock(mutex_);
    auto& pair = *std::ranges::lower_bound(ring_pairs_, to, {}, &RingPair::rank);
    if (pair.backlog.empty() && pair.out.has_room(sizeof head + bytes.size())) {
        pair.out.put(head_bytes);
        pair.out.put(bytes);
        pair.out.publish();
        base::nudge(pair.bell, audience);
        return;
    }
    const bool first = pair.backlog.empty();
    const auto needed = pair.backlog.size() + head_bytes.size() + bytes.size();
    // Room for the whole message comes first: it is queued whole, or not at all.
    if (needed > pair.backlog.capacity())
        pair.backlog.reserve(std::max(needed, 2 * pair.backlog.capacity()));
    pair.backlog.insert(pair.backlog.end(), head_bytes.begin(), head_bytes.end());
    pair.backlog.insert(pair.backlog.end(), bytes.begin(), bytes.end());
    if (first) ++backlogs_;
    flush_all();
}

/// Sends as much as there is room for.
bool HostMessages::flush(RingPair& pair) {
    while (pair.sent < pair.backlog.size() && pair.out.has_room(1)) {
        const auto rest = std::span(pair.backlog).subspan(pair.sent);
        const auto some = rest.first(std::min(pair.out.room(), rest.size()));
        pair.out.put(some);
        pair.out.publish();
        base::ring(pair.bell);
        pair.sent += some.size();
    }
    if (pair.sent < pair.backlog.size()) return false;
    pair.backlog.clear();
    pair.sent = 0;
    return true;
}

bool HostMessages::flush_all() {
    if (backlogs_ == 0) return true;
    for (auto& pair : ring_pairs_)
        if (!pair.backlog.empty() && flush(pair)) --backlogs_;
    return backlogs_ == 0;
}

bool HostMessages::flush() {
    const base::Lock lock(mutex_);
    return flush_all();
}

void HostMessages::discard() {
    const base::Lock lock(mutex_);
    flush_all();
    for (auto& pair : ring_pairs_) {
        pair.in.skip();
        if (pair.in.release()) base::ring(pair.bell);
    }
}

/// Whether a message from this rank is complete. If there is no memory for it, the next call
/// continues where this one threw.
bool HostMessages::receive(RingPair& pair) {
    const auto head = std::as_writable_bytes(std::span(&pair.head, 1));
    for (;;) {
        if (pair.arrived == head.size()) {
            if (pair.head.bytes > max_control_bytes)
                throw Error(ErrorCode::wire,
                            fmt::format("rank {} sent a control message of {} bytes", pair.rank,
                                        pair.head.bytes),
                            {.ranks = {pair.rank}});
            pair.message.resize(pair.head.bytes);
        }
        if (pair.arrived >= head.size() && pair.arrived == head.size() + pair.message.size())
            return true;
        if (pair.in.available() == 0) return false;
        pair.arrived +=
            pair.in.take(pair.arrived < head.size()
                             ? head.subspan(pair.arrived)
                             : std::span(pair.message).subspan(pair.arrived - head.size()));
        if (pair.in.release()) base::ring(pair.bell);
    }
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
    for (auto& pair : ring_pairs_) {
        while (receive(pair)) {
            const bool is_next = pair.head.channel == channel && (!from || *from == pair.rank);
            // If there is no memory to keep it, the next call finds it complete, too.
            if (!is_next) arrived_[pair.head.channel].push_back({pair.rank, {}});
            pair.arrived = 0;
            if (is_next) return Messages::Message{pair.rank, std::exchange(pair.message, {})};
            arrived_[pair.head.channel].back().bytes = std::exchange(pair.message, {});
        }
    }
    return std::nullopt;
}

}  // namespace guozhuang::wire
