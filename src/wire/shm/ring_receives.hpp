#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "wire/shm/host_messages.hpp"

namespace guozhuang::wire {

/// Data that travels as messages through the rings of a host, if not every thread may call MPI. Use
/// it under one lock.
class RingReceives {
public:
    /// Splits data that is longer than a message may be.
    static void send(HostMessages& messages, int to, Tag tag, std::uint32_t channel,
                     std::span<const std::byte> bytes);

    /// Only test() writes to the memory, until it has returned true or forget() was called.
    Messages::Ticket start(int from, std::uint32_t channel, std::span<std::byte> memory);
    /// Whether all bytes have arrived; resets the ticket then. Arriving bytes belong to the oldest
    /// receive of their sender and channel. Throws Error(wire) if more bytes arrive than were
    /// expected.
    bool test(HostMessages& messages, Messages::Ticket& ticket);
    void forget() noexcept { receives_.clear(); }

private:
    struct Receive {
        int from = 0;
        std::uint32_t channel = 0;
        std::span<std::byte> memory;  ///< the bytes still missing
    };

    std::map<std::uint64_t, Receive> receives_;  ///< by ticket, oldest first
    std::uint64_t last_ticket_ = 0;
};

}  // namespace guozhuang::wire
