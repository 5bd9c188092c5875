#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace guozhuang::wire {

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

/// Moves bytes between the ranks of the job. Ranks are world ranks. Thread-safe: any thread of the
/// process, at any time between construction and the transport's close(). Nothing here blocks.
/// Errors of the transport throw Error(wire); once messages have been abandoned, what has ended the
/// job.
class Messages {
public:
    /// A message in flight; a value that is handed back to test(). 0 is none.
    struct Ticket {
        std::uint64_t id = 0;
    };
    struct Message {
        int from = 0;
        std::vector<std::byte> bytes;
    };

    /// What this rank has given others as data (not control) so far: messages, and what it wrote to
    /// its stage.
    struct Traffic {
        std::uint64_t bytes = 0;
        std::uint64_t messages = 0;
    };

    virtual ~Messages() = default;

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

    /// The largest user tag that messages can carry.
    virtual std::uint16_t largest_user_tag() const noexcept {
        return std::numeric_limits<std::uint16_t>::max();
    }
    virtual Traffic traffic() const noexcept = 0;
};

}  // namespace guozhuang::wire
