#pragma once

#include <cstddef>
#include <guozhuang/mpi_communicator.hpp>
#include <memory>
#include <string>

#include "base/config.hpp"
#include "wire/transport.hpp"

namespace guozhuang::wire {

struct MpiOptions {
    /// The user's communicator, which connect() duplicates. None: all processes that mpirun has
    /// started.
    MpiCommunicator communicator = {};
    /// The transport uses shared_memory, spin_us, exit_on_death, simulated_host and, if it is for
    /// this rank, fault.
    base::Config config = {};
    /// Called when the user finalises MPI while a transport is open: the last moment to close it.
    void (*before_finalise)() = nullptr;
    /// The size of fragments: a longer message travels in several, because MPI counts in int. The
    /// same on all ranks.
    std::size_t split_bytes = std::size_t{1} << 30;
};

/// Makes the transport of this process. Collective over the communicator; blocks until all its
/// ranks have called it. From then on log lines begin with the rank.
///
/// A process that no launcher has started, without MPI running and without a communicator, is a job
/// of one rank: it gets an in-process transport, and MPI is not initialised. Otherwise the
/// transport uses MPI on a duplicate of the communicator. If MPI is not running, it is initialised
/// here and finalised when the process exits, so a process may connect, close and connect again.
/// MPI_Finalize must come after close(), unless close() is called in `before_finalise`.
///
/// If the thread level of some rank is below MPI_THREAD_MULTIPLE, only connect() and close() call
/// MPI, on the calling thread, and all messages go through shared memory. If the ranks are then on
/// several hosts, or share no memory, connect() throws Error(unavailable) on all ranks.
///
/// Throws Error(invalid_argument) if the communicator is MPI_COMM_NULL; Error(unavailable) if MPI
/// has been finalised, or if the launcher is another MPI's (it has started several processes, but
/// each is alone); Error(wire) if MPI fails. User tags are 14 bits shorter than MPI_TAG_UB.
std::unique_ptr<Transport> connect(const MpiOptions& options = {});

/// One line for users: "Open MPI v4.1.4, MPI_THREAD_MULTIPLE", or that this process does not use
/// MPI. Any thread, any time.
std::string describe_mpi();

/// Calls MPI_Abort if MPI runs. The launcher decides whether that ends all ranks: mpirun
/// --enable-recovery ends only this one.
void abort_mpi();

}  // namespace guozhuang::wire
