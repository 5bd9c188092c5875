#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <guozhuang/error.hpp>
#include <span>
#include <string>
#include <vector>

#include "wire/transport.hpp"

namespace guozhuang::wire::mpi {

/// What a send or a receive is about.
struct Half {
    int peer = 0;
    std::size_t bytes = 0;
    bool receives = false;
};

/// One send or receive in flight.
struct Operation {
    std::uint32_t generation = 1;  ///< tells a spent ticket from a valid one
    bool busy = false;
    Half half;
    std::size_t missing = 0;  ///< pieces that are not complete
    std::string error;        ///< of the first piece that failed
};

/// A receive of what comes through a ring.
struct RingReceive {
    int from = 0, code = 0;
    std::span<std::byte> memory;  ///< what is still to come
};

/// The operations in flight. A ticket is a place in the table and the generation of its use; places are used again, with their memory.
class OperationTable {
public:
    Operation& open(Transport::Ticket& ticket) {
        auto place = static_cast<std::uint32_t>(operations_.size());
        if (free_.empty()) {
            if (free_.capacity() <= operations_.size()) free_.reserve(2 * operations_.size() + 1);  // so that retire() lacks nothing
            operations_.emplace_back();
        } else {
            place = free_.back();
            free_.pop_back();
        }
        Operation& operation = operations_[place];
        operation.busy = true;
        ticket.id = (std::uint64_t{operation.generation} << 32) | (place + 1);
        return operation;
    }

    Operation& find(Transport::Ticket ticket) {
        const auto place = static_cast<std::uint32_t>(ticket.id) - 1;
        if (place >= operations_.size() || !operations_[place].busy || operations_[place].generation != ticket.id >> 32) {
            throw Error(ErrorCode::internal, "a ticket was tested after it was spent");
        }
        return operations_[place];
    }

    void retire(Transport::Ticket ticket) {
        Operation& operation = find(ticket);
        operation.busy = false;
        operation.missing = 0;
        operation.error.clear();
        ++operation.generation;
        free_.push_back(static_cast<std::uint32_t>(ticket.id) - 1);
    }

    Operation& at(std::uint32_t place) { return operations_[place]; }

    std::size_t in_flight() const noexcept { return operations_.size() - free_.size(); }

private:
    std::deque<Operation> operations_;
    std::vector<std::uint32_t> free_;
};

}  // namespace guozhuang::wire::mpi
