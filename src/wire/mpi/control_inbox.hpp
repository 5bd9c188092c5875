#pragma once

#include <mpi.h>
#include <optional>
#include <vector>

#include "base/wait.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire::mpi {

/// Control messages that have been matched and may still be arriving. To be used under the lock
/// that is around every call of MPI.
class ControlInbox {
public:
    /// The next message with this tag that is whole and that no earlier one of its sender must
    /// precede.
    std::optional<Messages::Message> poll(MPI_Comm communicator, int tag);

    /// The same, but it does not look more often than every few milliseconds.
    std::optional<Messages::Message> poll_seldom(MPI_Comm communicator, int tag);

    /// The last words of some cross those of others, and nobody looks for them any more. With the
    /// communicator MPI would lose the memory they are in.
    void take_the_rest(MPI_Comm communicator);

    /// Of messages that may never arrive, or arrive after the end: their memory is kept to the end
    /// of the process.
    void keep_for_ever();

private:
    struct Incoming {
        int tag = 0;
        MPI_Request request = MPI_REQUEST_NULL;
        Messages::Message message;
    };

    void accept(MPI_Comm communicator, int tag);
    static bool has_arrived(Incoming& incoming);

    std::vector<Incoming> incoming_;
    base::Clock::time_point next_look_{};  ///< of poll_seldom
};

}  // namespace guozhuang::wire::mpi
