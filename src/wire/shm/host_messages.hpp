#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "wire/messages.hpp"
#include "wire/shm/message_rings.hpp"

namespace guozhuang::wire {

/// Messages between the ranks of one host, through shared memory. Messages of one sender and
/// channel arrive in order. Bytes that a ring has no room for wait on the sender's side until the
/// receiver polls, so a rank must poll even if it expects nothing. Ranks are world ranks. Nothing
/// blocks. Thread-safe.
class HostMessages {
public:
    struct HostRank {
        int rank = 0;
        base::Doorbell& bell;
    };
    /// `host_ranks`: all ranks of the host, ascending, including this one, `local_rank`. Bells and
    /// rings outlive this.
    HostMessages(const MessageRings& rings, std::span<const HostRank> host_ranks, int local_rank);

    /// Takes a copy, and rings the receiver for this audience if it waits.
    void send(int to, std::uint32_t channel, std::span<const std::byte> bytes,
              base::Audience audience = base::everybody);
    /// Returns the next whole message of a channel, from one sender or anybody, if there is one.
    /// Throws Error(wire) for bytes that cannot be a message.
    std::optional<Messages::Message> poll(std::uint32_t channel,
                                          std::optional<int> from = std::nullopt);
    /// Sends bytes that wait for room; false if some still wait.
    bool flush();
    /// For a rank that no longer polls: the same, and makes room for ranks that still send.
    void discard();

private:
    /// In front of every message.
    struct Head {
        std::uint32_t bytes = 0;
        std::uint32_t channel = 0;
    };
    struct RingPair {
        int rank;
        base::Doorbell& bell;
        RingWriter out;
        RingReader in;
        /// Bytes that did not fit into the ring; those before `sent` have been sent since.
        std::vector<std::byte> backlog = {};
        std::size_t sent = 0;
        Head head = {};           ///< of the message that is arriving
        std::size_t arrived = 0;  ///< bytes of the head and the message
        std::vector<std::byte> message = {};
    };
    static bool flush(RingPair& pair);
    bool flush_all() GUOZHUANG_REQUIRES(mutex_);
    static bool receive(RingPair& pair);

    base::Mutex mutex_;
    /// The other ranks of the host, ascending.
    std::deque<RingPair> ring_pairs_ GUOZHUANG_GUARDED_BY(mutex_);
    /// Messages that arrived while another channel or sender was polled, by channel.
    std::map<std::uint32_t, std::deque<Messages::Message>> arrived_ GUOZHUANG_GUARDED_BY(mutex_);
    /// How many ring pairs have a backlog.
    std::size_t backlogs_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
};

}  // namespace guozhuang::wire
