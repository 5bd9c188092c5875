#pragma once

#include <cstddef>
#include <mpi.h>
#include <span>
#include <vector>

#include "topology/topology.hpp"
#include "wire/messages.hpp"
#include "wire/mpi/message_table.hpp"

namespace guozhuang::wire::mpi {

/// Above this size a sender may need the receiver to make progress (rendezvous), so the receiver
/// rings it. All MPI libraries send smaller messages at once, most of them also longer ones.
inline constexpr std::size_t eager_bytes = 4096;

/// How long the fragments of a message are, `longest` at most; the same on both sides. On a long
/// link MPI usually sends a short one without asking the receiver first, which would take another
/// round trip. Longer messages are left to MPI, which would have to store them if the receiver is
/// late.
std::size_t fragment_bytes(const topology::Topology& topology, int peer, std::size_t bytes,
                           std::size_t longest) noexcept;

/// The sends and receives that MPI is working on, each cut into fragments. Use it under the lock
/// for MPI calls.
class MessagesInFlight {
public:
    using Ticket = Messages::Ticket;
    struct Envelope {
        int code = 0;                    ///< MPI's tag
        std::size_t fragment_bytes = 0;  ///< of the longest; at most what an int holds
    };
    struct Progress {
        bool any = false;          ///< something has ended, maybe another thread's message
        std::vector<int> senders;  ///< of large messages that have arrived: they sleep until rung
    };

    /// Starts a message: sends `source` or, if this side receives, fills `target`.
    Ticket start(MPI_Comm communicator, const MessageSide& side, const Envelope& envelope,
                 std::span<const std::byte> source, std::span<std::byte> target);
    /// Tests all requests, since MPI may complete any of them at any call.
    Progress progress();
    const InFlight& find(Ticket ticket) { return table_.find(ticket); }
    void retire(Ticket ticket) { table_.retire(ticket); }
    std::size_t count() const noexcept { return table_.in_flight(); }

    /// Gives up all messages: cancels the receives that have not begun, and forgets the others.
    /// Returns none_at_mpi(). Allocates nothing.
    bool cancel() noexcept;
    /// After cancel(): the ranks among `senders` (ascending) with a receive that MPI could not
    /// cancel, because it had begun, and that has not ended.
    std::vector<int> begun_by(std::span<const int> senders);
    /// Whether MPI uses no memory of messages.
    bool none_at_mpi() const noexcept { return requests_.empty(); }

private:
    /// The bytes of one MPI request.
    struct Fragment {
        std::uint32_t index = 0;  ///< of the message in the table
        int bytes = 0;
    };
    void complete(const Fragment& fragment, const MPI_Status& status, bool failed);
    void drop_completed();

    MessageTable table_;
    std::vector<MPI_Request> requests_;  ///< of all fragments in flight
    std::vector<Fragment> fragments_;    ///< beside each request
    std::vector<int> indices_;           ///< for MPI_Testsome
    std::vector<MPI_Status> statuses_;
};

}  // namespace guozhuang::wire::mpi
