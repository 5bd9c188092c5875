#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <guozhuang/error.hpp>
#include <string>
#include <vector>

#include "wire/messages.hpp"

namespace guozhuang::wire::mpi {

/// One side of a message: this rank's send or receive.
struct MessageSide {
    int peer = 0;
    std::size_t bytes = 0;
    bool receives = false;
};

/// A send or receive in flight.
struct InFlight {
    std::uint32_t generation = 1;  ///< tells a spent ticket from a valid one
    bool busy = false;
    MessageSide side;
    std::size_t missing = 0;  ///< fragments not complete
    std::string error;        ///< of the first fragment that failed
};

/// The sends and receives in flight. A ticket is an index into the table and the generation of its
/// use. Indices are reused, with the memory of their entries.
class MessageTable {
public:
    InFlight& open(Messages::Ticket& ticket) {
        auto index = static_cast<std::uint32_t>(messages_.size());
        if (free_.empty()) {
            // Reserved here, so that retire() never allocates.
            if (free_.capacity() <= messages_.size()) free_.reserve(2 * messages_.size() + 1);
            messages_.emplace_back();
        } else {
            index = free_.back();
            free_.pop_back();
        }
        InFlight& message = messages_[index];
        message.busy = true;
        ticket.id = (std::uint64_t{message.generation} << 32) | (index + 1);
        return message;
    }

    InFlight& find(Messages::Ticket ticket) {
        const auto index = static_cast<std::uint32_t>(ticket.id) - 1;
        if (index >= messages_.size() || !messages_[index].busy ||
            messages_[index].generation != ticket.id >> 32) {
            throw Error(ErrorCode::internal, "a ticket was tested after it was spent");
        }
        return messages_[index];
    }

    void retire(Messages::Ticket ticket) {
        InFlight& message = find(ticket);
        message.busy = false;
        message.missing = 0;
        message.error.clear();
        ++message.generation;
        free_.push_back(static_cast<std::uint32_t>(ticket.id) - 1);
    }

    InFlight& at(std::uint32_t index) { return messages_[index]; }

    std::size_t in_flight() const noexcept { return messages_.size() - free_.size(); }

private:
    std::deque<InFlight> messages_;
    std::vector<std::uint32_t> free_;
};

}  // namespace guozhuang::wire::mpi
