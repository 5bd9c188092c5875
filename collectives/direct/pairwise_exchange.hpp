#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/wire.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::direct {

/// The messages between one rank and all others, at most one each way with each at a time. Rank r
/// begins with r + 1, so that no rank is the first for all others. Skips empty messages.
template <Wire W>
class PairwiseExchange {
public:
    using Ticket = typename W::Ticket;

    static constexpr std::size_t scratch_bytes(int ranks) {
        return 2 * padded_array<Ticket>(static_cast<std::size_t>(ranks));
    }

    PairwiseExchange() = default;
    PairwiseExchange(W& wire, Scratch& scratch)
        : wire_(&wire),
          incoming_(scratch.cut_array<Ticket>(static_cast<std::size_t>(wire.size()))),
          outgoing_(scratch.cut_array<Ticket>(static_cast<std::size_t>(wire.size()))) {}

    template <class Visit>
    void for_each(Visit&& visit) const {
        for (int distance = 1; distance < wire_->size(); ++distance)
            visit((wire_->rank() + distance) % wire_->size());
    }

    /// Starts receiving into room_for(peer), for every peer.
    template <class RoomFor>
    void receive(RoomFor&& room_for) {
        for_each([&](int peer) {
            const std::span<std::byte> room = room_for(peer);
            if (!room.empty())
                incoming_[static_cast<std::size_t>(peer)] = wire_->receive(room, peer);
        });
    }

    /// Starts sending bytes_for(peer), for every peer.
    template <class BytesFor>
    void send(BytesFor&& bytes_for) {
        for_each([&](int peer) {
            const std::span<const std::byte> bytes = bytes_for(peer);
            if (!bytes.empty())
                outgoing_[static_cast<std::size_t>(peer)] = wire_->send(bytes, peer);
        });
    }

    /// Both wait until all that was started is done, and return at once if nothing was.
    void wait_received() { wait(incoming_); }
    void wait_sent() { wait(outgoing_); }

private:
    void wait(std::span<Ticket> tickets) {
        for (auto& ticket : tickets) {
            wire_->wait(ticket);
            ticket = {};
        }
    }

    W* wire_ = nullptr;
    std::span<Ticket> incoming_, outgoing_;  ///< by peer
};

}  // namespace guozhuang::direct
