#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/shm/regions.hpp"

namespace guozhuang::wire {

/// 0, 1, 2 ...: the world ranks of a job of this size.
inline std::vector<int> all_ranks(int size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
}

/// What keeps the messages of different process sets and purposes apart: the set's context id and a
/// lane within it. Messages of the control lane are taken by poll(), from whomever they come; those
/// of the other lanes by receive().
enum class Lane : std::uint8_t { control, host_data, device_data, point_to_point };

struct Tag {
    std::uint16_t context = 0;  ///< process set; the world is 0
    Lane lane = Lane::control;
    std::uint16_t user = 0;  ///< point to point only: the user's tag
    friend bool operator==(const Tag&, const Tag&) = default;
};

/// No control message is longer: a larger one can only be corrupt.
inline constexpr std::size_t max_control_bytes = (std::size_t{64} << 20) + 64;

/// Moves bytes between all ranks of the job. Ranks are world ranks. Thread-safe: any thread of the
/// process, at any time between construction and close(). Nothing here blocks. Errors of the
/// transport throw Error(wire).
class Transport {
public:
    /// A message in flight; a value that is handed back to test(). 0 is none.
    struct Ticket {
        std::uint64_t id = 0;
    };
    struct Message {
        int from = 0;
        std::vector<std::byte> bytes;
    };

    virtual ~Transport() = default;

    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;

    /// Starts a message; the memory is borrowed until test() has returned true. Messages of one
    /// (sender, receiver, tag) arrive in order. Any length, beyond 2^31 bytes too; the receiver
    /// names the exact length. Wakes the receiver where it has a doorbell.
    virtual Ticket send(int to, Tag tag, std::span<const std::byte> bytes) = 0;
    virtual Ticket receive(int from, Tag tag, std::span<std::byte> bytes) = 0;
    /// True when the message is complete; the ticket is then spent and reset to none. None counts
    /// as complete. Drives progress.
    virtual bool test(Ticket& ticket) = 0;

    /// The next whole message of a control tag from any rank, if one is there. Drives the progress
    /// of such messages.
    virtual std::optional<Message> poll(Tag tag) = 0;
    /// Whether all control messages whose memory has been given back have left this rank. Drives
    /// the progress of such messages.
    virtual bool flushed() = 0;

    /// Ends the job for every rank: their waits throw the cause (see base::throw_cause), on this
    /// host at once, and on others as soon as they hear of it through MPI. Any thread, at any time.
    virtual void abort(const base::AbortCause& cause) noexcept = 0;
    /// Says why this rank is about to leave the job without waiting for the others: whoever notices
    /// that its process has ended says so, and does not call it a death.
    virtual void depart(std::string_view reason) noexcept {
        activity().departure.write({}, reason);
    }
    /// Gives up every message in flight, for a rank whose job is over: nothing arrives any more,
    /// and what is asked for later throws Error(aborted). False if there are messages that cannot
    /// be stopped: their memory stays borrowed to the end of the process. Any thread.
    virtual bool abandon() noexcept = 0;

    /// Where this rank says what it is doing, for the others of its host.
    virtual trace::Activity& activity() noexcept = 0;
    /// What another rank is doing; empty where that cannot be seen: without shared memory, or on
    /// another host.
    virtual std::optional<trace::Neighbour> look_at(int rank) = 0;
    /// Where this rank waits, and how.
    virtual base::Doorbell& doorbell() noexcept = 0;
    virtual const base::WaitSettings& wait_settings() const noexcept = 0;

    /// How much each rank may take of memory in which the ranks of its host stage data for each
    /// other, if on every host all ranks share memory; else 0, on every rank.
    virtual std::size_t stage_bytes() const noexcept = 0;
    /// Bytes written to this rank's stage, for traffic().
    virtual void count_staged(std::size_t bytes) noexcept = 0;
    /// Wakes a rank of this host that sleeps: for news that are in shared memory; see base::nudge
    /// for how they must be stored.
    virtual void nudge(int rank, base::Audience audience) noexcept = 0;

    /// What the ranks of this host have opened to each other; may outlive the transport.
    const std::shared_ptr<Regions>& regions() const noexcept { return regions_; }

    /// The host of each rank, the same on all ranks; hosts are numbered in the order of their first
    /// ranks. HostGrid makes more of it.
    virtual const std::vector<int>& hosts() const noexcept = 0;
    int host_count() const noexcept { return 1 + std::ranges::max(hosts()); }

    /// The largest user tag that messages can carry.
    virtual std::uint16_t largest_user_tag() const noexcept {
        return std::numeric_limits<std::uint16_t>::max();
    }
    /// For people: "Open MPI v4.1.4", "in-process".
    virtual const char* description() const noexcept = 0;

    /// Collective teardown: every rank calls it after its last message; returns when all have.
    /// Never called from a destructor.
    virtual void close() = 0;

    /// What this rank has given others as data (not control) so far: messages, and what it wrote to
    /// its stage.
    struct Traffic {
        std::uint64_t bytes = 0;
        std::uint64_t messages = 0;
    };
    virtual Traffic traffic() const noexcept = 0;

private:
    const std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
};

}  // namespace guozhuang::wire
