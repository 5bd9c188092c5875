#pragma once

#include <mpi.h>
#include <optional>
#include <vector>

#include "base/wait.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire::mpi {

/// Control messages that have been matched and may still be arriving. Use it under the lock for MPI
/// calls.
class ControlInbox {
public:
    /// Returns the next whole message with this tag, unless an earlier one from its sender is still
    /// arriving.
    std::optional<Messages::Message> poll(MPI_Comm communicator, int tag);

    /// The same, but looks for messages of each of so many ranks by itself and leaves out those for
    /// which MPI fails: when a process has ended, Open MPI 5 refuses to look for messages of any
    /// rank.
    std::optional<Messages::Message> poll_each(MPI_Comm communicator, int tag, int ranks);

    /// poll(), but looks only every few milliseconds; poll_each() where that fails.
    std::optional<Messages::Message> poll_seldom(MPI_Comm communicator, int tag, int ranks);

    /// Whether a message has been matched and may still be arriving.
    bool is_receiving() const noexcept { return !incoming_.empty(); }

    /// Receives messages that nobody will poll for, since the ranks' last messages may cross.
    /// Otherwise MPI would leak their memory with the communicator.
    void take_the_rest(MPI_Comm communicator);

    /// Keeps the memory of messages that have not arrived until the process ends: they may arrive
    /// later, or never.
    void keep_for_ever();

private:
    struct Incoming {
        int tag = 0;
        MPI_Request request = MPI_REQUEST_NULL;
        Messages::Message message;
    };

    void accept(MPI_Comm communicator, int tag, int from = MPI_ANY_SOURCE);
    std::optional<Messages::Message> next(int tag);
    static bool has_arrived(Incoming& incoming);

    std::vector<Incoming> incoming_;
    base::Clock::time_point next_look_{};  ///< of poll_seldom()
};

}  // namespace guozhuang::wire::mpi
