#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/wait.hpp"
#include "wire/socket.hpp"

namespace guozhuang::wire {

/// The doorbells of ranks on other hosts: a thread there that sleeps for news of MPI is woken by a
/// datagram. A datagram may get lost, so the thread also looks without being woken, at intervals:
/// shorter ones once messages come that no datagram has announced.
///
/// A host has several addresses, and not all can be reached from everywhere. So a rank that has not
/// been heard yet is rung at all of them, and answers; where it answers from, it is rung from then
/// on.
class RemoteBells {
public:
    /// Throws Error(unavailable).
    RemoteBells() : socket_(Socket::open(SOCK_DGRAM)), endpoint_(socket_.bind()) {}

    const Endpoint& endpoint() const noexcept { return endpoint_; }
    /// `endpoints`: of all ranks; port 0: such a rank is not rung. Call it once, before all else.
    void connect(int rank, std::vector<Endpoint> endpoints);

    /// Wakes the waits of an audience, if they sleep. Never blocks. Any thread.
    void ring(int rank, base::Audience audience) noexcept;
    /// Whether this rank has ever heard that one. Any thread.
    bool has_heard(int rank) const noexcept { return address_of(rank) != INADDR_ANY; }

    /// Call it for each message of another host that a ring should announce.
    void count_message(int from) noexcept;
    /// Whether so many of one rank have come in a row without one that this rank must not rely on
    /// rings.
    bool are_silent() const noexcept { return silent_ranks_ > 0; }

    // One thread at a time:
    /// Readable when receive() should be called.
    int descriptor() const noexcept { return socket_.descriptor(); }
    /// Takes what has arrived, and wakes whom it is for. Returns whether somebody slept.
    bool receive(base::Doorbell& bell) noexcept;

private:
    /// As plain bytes.
    struct Datagram {
        decltype(Endpoint::token) token{};  ///< of the receiver
        std::int32_t from = 0;
        base::Audience audience = 0;
        std::uint32_t wants_answer = 0;
    };

    in_addr_t address_of(int rank) const noexcept {
        return addresses_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed);
    }
    void send(int rank, base::Audience audience, bool wants_answer, in_addr address) noexcept;

    static constexpr std::uint32_t most_unannounced = 3;

    const Socket socket_;
    const Endpoint endpoint_;
    std::atomic<int> silent_ranks_{0};
    int rank_ = 0;
    std::vector<Endpoint> endpoints_;                      ///< of all ranks
    std::vector<std::atomic<in_addr_t>> addresses_;        ///< from which they have been heard
    std::vector<std::atomic<std::uint32_t>> unannounced_;  ///< their messages since their last ring
};

}  // namespace guozhuang::wire
