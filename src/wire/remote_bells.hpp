#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/socket.hpp"

namespace guozhuang::wire {

/// The doorbells of ranks on other hosts: a thread there that sleeps for news of MPI is woken by a
/// datagram. A datagram may get lost, so the thread also looks without being woken, at intervals:
/// shorter ones once messages come that no datagram has announced.
///
/// A host has several addresses, and not all can be reached from everywhere. So a rank that has not
/// been heard yet is rung at all of them, and answers; where it answers from, it is rung from then
/// on.
///
/// By datagrams ranks are also asked what they are doing.
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
    /// Whether several messages in a row from one rank came without a ring, so that rings cannot be
    /// relied on.
    bool are_silent() const noexcept { return silent_ranks_ > 0; }

    /// Asks what a rank of another host is doing. Returns its latest answer, or a status that
    /// `is_awaited`: ask again a little later, which also makes up for a loss. `there`: the ranks
    /// of its host, which take turns to be asked. If none has answered for a second: an empty
    /// status, or nothing if none has ever been heard. Never blocks. Any thread.
    std::optional<trace::RankStatus> ask(int rank, std::span<const int> there);

    // One thread at a time:
    /// Readable when receive() should be called.
    int descriptor() const noexcept { return socket_.descriptor(); }
    using LookAt = std::function<std::optional<trace::RankStatus>(int rank)>;
    /// Takes what has arrived, wakes whom it is for, and answers by `look_at`. Returns whether
    /// somebody slept.
    bool receive(base::Doorbell& bell, const LookAt& look_at = {}) noexcept;

private:
    static constexpr std::uint32_t most_bytes = 8000;  ///< of an answer

    /// As plain bytes.
    struct Datagram {
        decltype(Endpoint::token) token{};  ///< of the receiver
        std::int32_t from = 0;
        base::Audience audience = 0;
        std::uint32_t wants_answer = 0;
        std::uint32_t room = 0;   ///< not 0: it asks about a rank, in at most so many bytes
        std::int32_t about = -1;  ///< that rank, or the one that the following bytes are about
    };
    /// About one rank.
    struct Inquiry {
        base::Clock::time_point asked{}, since{};  ///< the last question, and the first unanswered
        std::size_t count = 0;                     ///< of unanswered questions
        base::Clock::time_point answered{};
        std::optional<trace::RankStatus> status = {};  ///< the last answer
    };

    in_addr_t address_of(int rank) const noexcept {
        return addresses_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed);
    }
    void send(int rank, Datagram datagram) noexcept;
    void send_to(in_addr address, int rank, Datagram datagram, std::string_view text = {}) noexcept;
    void answer(const Datagram& question, in_addr address, const LookAt& look_at) noexcept;
    void take_answer(int about, std::string_view text) noexcept;

    static constexpr std::uint32_t most_unannounced = 3;

    const Socket socket_;
    const Endpoint endpoint_;
    std::atomic<int> silent_ranks_{0};
    int rank_ = 0;
    std::vector<Endpoint> endpoints_;                      ///< of all ranks
    std::vector<std::atomic<in_addr_t>> addresses_;        ///< from which they have been heard
    std::vector<std::atomic<std::uint32_t>> unannounced_;  ///< their messages since their last ring
    base::Mutex mutex_;
    std::map<int, Inquiry> inquiries_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::wire
