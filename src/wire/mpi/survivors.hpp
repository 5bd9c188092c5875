#pragma once

#include <chrono>
#include <mpi.h>

#include "wire/mpi/hosts.hpp"
#include "wire/mpi/messages_in_flight.hpp"

namespace guozhuang::wire::mpi {

/// A communicator of the ranks that are left, in their order. They all call it; it blocks, and no
/// other thread calls MPI meanwhile. Receives from these ranks that had begun have then ended, so
/// that the program has its memory back. `monitor`: watches the ranks that are left from then on,
/// as discover_host() does.
///
/// Each rank tells all others whom it knows to be gone: a process of its host has ended, or a link
/// to one of another host. They are agreed when each has heard from all who are left the same as it
/// says. So a rank that dies meanwhile is left out, too. If one dies later, while MPI makes the
/// communicator, this ends the process, as discover_host() does.
///
/// This process ends after twice the limit, unless base::keep_process() is called then: nothing
/// else ends a wait inside MPI for a rank that is stopped.
///
/// Throws Error: timeout, naming the ranks that have not called it within the limit, or take this
/// one for dead; unavailable if ranks cannot be reached, so that they may be alive, and those left
/// are less than half of all, or half without rank 0; wire.
MPI_Comm communicator_of_survivors(MPI_Comm world, Host& host, MessagesInFlight& in_flight,
                                   std::chrono::milliseconds limit,
                                   std::optional<Monitor>& monitor);

}  // namespace guozhuang::wire::mpi
