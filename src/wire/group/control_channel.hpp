#pragma once

#include <cstddef>
#include <vector>

#include "engine/control.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire {

/// The control messages of one process set. Not thread-safe (see engine::Control). The transport
/// must outlive it; before the transport closes, flushed() must have returned true.
///
/// Every message has an envelope: the format's version, the set's identity, the length and a
/// checksum. A message that is corrupt, truncated, foreign or of another version becomes an
/// Error(wire) that names the sender. A message from an earlier epoch of the context is dropped.
class ControlChannel final : public engine::Control {
public:
    /// `ranks`: world ranks by group rank, ascending; this rank is one of them.
    ControlChannel(Messages& messages, engine::SetId id, std::vector<int> ranks);
    ~ControlChannel() override;
    ControlChannel(const ControlChannel&) = delete;
    ControlChannel& operator=(const ControlChannel&) = delete;

    int rank() const noexcept override { return group_rank_; }
    int size() const noexcept override { return static_cast<int>(ranks_.size()); }
    /// Throws Error(invalid_argument) beyond 64 MiB.
    void send(int to, std::vector<std::byte> message) override;
    std::optional<Message> poll() override;
    bool flushed() override;

private:
    struct Outgoing {
        Messages::Ticket ticket;
        std::vector<std::byte> bytes;
    };

    int group_rank_of(int world_rank) const;
    void retire();

    Messages& messages_;
    const engine::SetId id_;
    const Tag tag_;
    std::vector<int> ranks_;
    int group_rank_;
    std::vector<Outgoing> outgoing_;  ///< their memory is borrowed by the transport
};

}  // namespace guozhuang::wire
