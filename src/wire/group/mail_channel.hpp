#pragma once

#include <utility>
#include <vector>

#include "base/failpoint.hpp"
#include "engine/control.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire {

/// The payloads of sends and receives of one process set. Thread-safe as the transport is; the
/// transport must outlive it.
class MailChannel final : public engine::Mail {
public:
    /// `ranks`: world ranks by group rank.
    MailChannel(Messages& messages, std::uint16_t context, std::vector<int> ranks)
        : messages_(messages), context_(context), ranks_(std::move(ranks)) {}

    Ticket send(int to, std::uint16_t tag, std::span<const std::byte> bytes) override {
        base::pass(base::Failpoint::payload_send);
        return messages_
            .send(ranks_[static_cast<std::size_t>(to)], {context_, Lane::point_to_point, tag},
                  bytes)
            .id;
    }
    Ticket receive(int from, std::uint16_t tag, std::span<std::byte> bytes) override {
        base::pass(base::Failpoint::payload_receive);
        return messages_
            .receive(ranks_[static_cast<std::size_t>(from)], {context_, Lane::point_to_point, tag},
                     bytes)
            .id;
    }
    bool test(Ticket& ticket) override {
        Messages::Ticket message{ticket};
        const bool complete = messages_.test(message);
        ticket = message.id;
        return complete;
    }

private:
    Messages& messages_;
    std::uint16_t context_;
    std::vector<int> ranks_;
};

}  // namespace guozhuang::wire
