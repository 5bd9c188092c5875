#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/wait.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

/// What the engine needs of the outside: small messages between the members of its process set.
/// Ranks are positions in the set. Called by whoever holds the engine's lock. Nothing here blocks.
/// Errors throw.
class Control {
public:
    struct Message {
        int from = 0;
        std::vector<std::byte> bytes;
    };

    virtual ~Control() = default;
    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;
    /// Queues a message and wakes the receiver, if it expects news. Messages to one rank arrive in
    /// order.
    virtual void send(int to, std::vector<std::byte> message) = 0;
    /// The next message that has arrived, if any. Also retires sends that are complete.
    virtual std::optional<Message> poll() = 0;
    /// Whether every message that was sent has left this rank.
    virtual bool flushed() = 0;
};

/// Memory to memory messages between members, for point-to-point operations. Ranks are positions in
/// the set. Nothing here blocks.
class Mail {
public:
    using Ticket = std::uint64_t;  ///< a message in flight; 0 is none

    virtual ~Mail() = default;
    /// Starts a message; the memory is borrowed until test() has returned true. Those of one
    /// (sender, receiver, tag) match in order.
    virtual Ticket send(int to, std::uint16_t tag, std::span<const std::byte> bytes) = 0;
    virtual Ticket receive(int from, std::uint16_t tag, std::span<std::byte> bytes) = 0;
    /// True when the message is complete; the ticket is then spent.
    virtual bool test(Ticket& ticket) = 0;
};

/// The job as a whole, for an engine that cannot go on. Thread-safe, and usable as long as it is
/// held.
class Job {
public:
    virtual ~Job() = default;
    /// Ends it for every rank: their waits throw the cause (see base::throw_cause).
    virtual void abort(const base::AbortCause& cause) noexcept = 0;
    /// What another rank of the world is doing; empty where that cannot be seen.
    virtual std::optional<trace::Neighbour> look_at(int rank) = 0;
    /// Gives up every message of this rank; false if the memory of some stays borrowed to the end
    /// of the process.
    virtual bool abandon() noexcept = 0;
};

}  // namespace guozhuang::engine
