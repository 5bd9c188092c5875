#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/wait.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

/// The one identity of a process set: its messages carry the context, and epochs tell apart the
/// sets that used a context one after the other. The world's is {0, 0}.
struct SetId {
    std::uint16_t context = 0;
    std::uint64_t epoch = 0;
    friend bool operator==(const SetId&, const SetId&) = default;
};

/// Small messages between the ranks of a process set, for the engine. Ranks are group ranks. Only
/// the thread that holds the engine's lock calls this. Nothing blocks; errors throw.
class Control {
public:
    struct Message {
        int from = 0;
        std::vector<std::byte> bytes;
    };

    virtual ~Control() = default;
    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;
    /// Queues a message, and wakes the receiver if it sleeps while waiting for this set. Messages
    /// to one rank arrive in order.
    virtual void send(int to, std::vector<std::byte> message) = 0;
    /// Returns the next message that has arrived, if any. Also releases sends that are complete.
    virtual std::optional<Message> poll() = 0;
    /// True once every message has left this rank.
    virtual bool flushed() = 0;
};

/// Memory to memory messages between ranks, for point-to-point operations. Ranks are group ranks.
/// Nothing here blocks.
class Mail {
public:
    using Ticket = std::uint64_t;  ///< a message in flight; 0 is none

    virtual ~Mail() = default;
    /// Starts a message. It borrows the memory until test() has returned true. Messages of the same
    /// sender, receiver and tag match in order.
    virtual Ticket send(int to, std::uint16_t tag, std::span<const std::byte> bytes) = 0;
    virtual Ticket receive(int from, std::uint16_t tag, std::span<std::byte> bytes) = 0;
    /// True once the message is complete; resets the ticket then.
    virtual bool test(Ticket& ticket) = 0;
};

/// Lets an engine abort the job and look at its ranks. Thread-safe, and usable as long as the
/// engine holds it.
class JobControl {
public:
    virtual ~JobControl() = default;
    /// Ends the job on every rank: all waits throw the cause (see base::throw_cause), on this host
    /// at once, on other hosts as soon as they hear of it. Any thread, at any time.
    virtual void abort(const base::AbortCause& cause) noexcept = 0;
    /// Returns the status of another rank of the world; empty if this rank cannot see it, because
    /// it shares no memory, or no datagram comes from its host. A rank of another host is asked:
    /// its status `is_awaited` until it has answered, for a second at most. Never blocks.
    virtual std::optional<trace::RankStatus> look_at(int rank) = 0;
    /// Gives up every message in flight, once the job is over for this rank: nothing more arrives,
    /// and later calls throw Error(aborted). Returns false if some messages cannot be stopped:
    /// their memory then stays borrowed until the process ends. Any thread.
    virtual bool abandon() noexcept = 0;
};

}  // namespace guozhuang::engine
