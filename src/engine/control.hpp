#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/wait.hpp"
#include "trace/activity.hpp"

namespace guozhuang::engine {

/// The one identity of a process set: where its messages go, and since when. A context is used
/// again once its set is gone, with a later epoch. The world's is {0, 0}.
struct SetId {
    std::uint16_t context = 0;
    std::uint64_t epoch = 0;
    friend bool operator==(const SetId&, const SetId&) = default;
};

/// What the engine needs of the outside: small messages between the ranks of its process set. Ranks
/// are group ranks. Called by whoever holds the engine's lock. Nothing here blocks. Errors throw.
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

/// Memory to memory messages between ranks, for point-to-point operations. Ranks are group ranks.
/// Nothing here blocks.
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
class JobControl {
public:
    virtual ~JobControl() = default;
    /// Ends it for every rank: their waits throw the cause (see base::throw_cause), on this host at
    /// once, and on others as soon as they hear of it. Any thread, at any time.
    virtual void abort(const base::AbortCause& cause) noexcept = 0;
    /// What another rank of the world is doing; empty where that cannot be seen: without shared
    /// memory, or on another host.
    virtual std::optional<trace::RankStatus> look_at(int rank) = 0;
    /// Gives up every message in flight, for a rank whose job is over: nothing arrives any more,
    /// and what is asked for later throws Error(aborted). False if there are messages that cannot
    /// be stopped: their memory stays borrowed to the end of the process. Any thread.
    virtual bool abandon() noexcept = 0;
};

}  // namespace guozhuang::engine
