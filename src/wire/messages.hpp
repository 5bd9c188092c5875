#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace guozhuang::wire {

/// A message's tag: the process set's context, and a lane for its purpose. Messages of the control
/// lane come out of poll(), from any rank; those of the other lanes go to receive().
enum class Lane : std::uint8_t { control = 0, host_data = 1, device_data = 2, point_to_point = 3 };
constexpr Lane last_of(Lane) noexcept {
    return Lane::point_to_point;
}

struct Tag {
    std::uint16_t context = 0;  ///< process set; the world is 0
    Lane lane = Lane::control;
    std::uint16_t user = 0;  ///< point to point only: the user's tag
    friend bool operator==(const Tag&, const Tag&) = default;
};

/// The context of messages that belong to the job and not to a process set: the handshake, in the
/// control lane, and the abort notice, in the lane of host data. No process set has it.
inline constexpr std::uint16_t job_context = 0xfff;

/// The longest control message. A longer one is corrupt.
inline constexpr std::size_t max_control_bytes = (std::size_t{64} << 20) + 64;

/// Moves bytes between the ranks of the job. Ranks are world ranks. Nothing here blocks.
/// Thread-safe, from construction to the transport's close(). Throws Error(wire) if the transport
/// fails; once messages have been abandoned, throws what has ended the job.
class Messages {
public:
    /// A message in flight; pass it to test(). 0 is none.
    struct Ticket {
        std::uint64_t id = 0;
    };
    struct Message {
        int from = 0;
        std::vector<std::byte> bytes;
    };

    /// Data that this rank has sent so far in messages (without control messages) or has written
    /// where other ranks read it.
    struct Traffic {
        std::uint64_t bytes = 0;
        std::uint64_t messages = 0;
    };

    virtual ~Messages() = default;

    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;

    /// Starts a message of any length. The memory is borrowed until test() has returned true.
    /// Messages of the same sender, receiver and tag arrive in order; the receiver names the exact
    /// length. Wakes the receiver if it has a doorbell that this rank can ring.
    virtual Ticket send(int to, Tag tag, std::span<const std::byte> bytes) = 0;
    virtual Ticket receive(int from, Tag tag, std::span<std::byte> bytes) = 0;
    /// True if the message is complete, or the ticket is empty. Resets the ticket then. Drives
    /// progress.
    virtual bool test(Ticket& ticket) = 0;

    /// Returns the next whole message with a control tag, from any rank, if there is one. Drives
    /// the progress of control messages.
    virtual std::optional<Message> poll(Tag tag) = 0;
    /// True once every control message for which test() has returned true has left this rank.
    /// Drives the progress of control messages.
    virtual bool flushed() = 0;

    /// The largest user tag that messages can carry.
    virtual std::uint16_t largest_user_tag() const noexcept {
        return std::numeric_limits<std::uint16_t>::max();
    }
    virtual Traffic traffic() const noexcept = 0;
};

}  // namespace guozhuang::wire
