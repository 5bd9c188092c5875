#include "wire/shm/ring_receives.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <guozhuang/error.hpp>

namespace guozhuang::wire {

void RingReceives::send(HostMessages& messages, int to, Tag tag, std::uint32_t channel,
                        std::span<const std::byte> bytes) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), max_control_bytes)))
        messages.send(to, channel, bytes.first(std::min(bytes.size(), max_control_bytes)),
                      base::audience_of(tag.context));
}

Messages::Ticket RingReceives::start(int from, std::uint32_t channel, std::span<std::byte> memory) {
    if (memory.empty()) return {};
    receives_[++last_ticket_] = {.from = from, .channel = channel, .memory = memory};
    return {last_ticket_};
}

bool RingReceives::test(HostMessages& messages, Messages::Ticket& ticket) {
    const auto own = receives_.find(ticket.id);
    if (own == receives_.end())
        throw Error(ErrorCode::internal, "a ticket was tested after it was spent");
    auto& [from, channel, memory] = own->second;
    const auto comes_before = [&](const auto& other) {
        return other.second.from == from && other.second.channel == channel;
    };
    if (std::any_of(receives_.begin(), own, comes_before)) return false;
    while (!memory.empty()) {
        const auto message = messages.poll(channel, from);
        if (!message) return false;
        if (message->bytes.size() > memory.size())
            throw Error(ErrorCode::wire,
                        fmt::format("rank {} sent {} bytes where {} were expected", from,
                                    message->bytes.size(), memory.size()),
                        {.ranks = {from}});
        std::ranges::copy(message->bytes, memory.begin());
        memory = memory.subspan(message->bytes.size());
    }
    receives_.erase(own);
    ticket = {};
    return true;
}

}  // namespace guozhuang::wire
