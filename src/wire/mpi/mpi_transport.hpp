#pragma once

#include <cstddef>
#include <guozhuang/mpi_communicator.hpp>
#include <memory>
#include <string>

#include "base/config.hpp"
#include "wire/transport.hpp"

namespace guozhuang::wire {

struct MpiOptions {
    /// The user's own communicator, duplicated during connect(). None: all processes that mpirun
    /// started.
    MpiCommunicator communicator = {};
    /// The transport heeds shared_memory, spin_us, exit_on_death, simulated_host and, if it is this
    /// rank's, fault.
    base::Config config = {};
    /// Called when the user finalises MPI while transports are open, at the last moment in which
    /// they can be closed.
    void (*before_finalise)() = nullptr;
    /// Longer messages travel in several fragments, because MPI counts in int. The same on all
    /// ranks.
    std::size_t split_bytes = std::size_t{1} << 30;
};

/// The transport of this process. Collective over the communicator; blocks until all its ranks have
/// come.
///
/// A process that no launcher started, without MPI running and without a communicator, is a job of
/// one: it gets an in-process transport, and MPI is not initialised. Otherwise the transport uses
/// MPI, on a duplicate of the communicator. MPI that is already running is used as it is; if it is
/// not, it is initialised here and finalised when the process exits, so a process may connect,
/// close and connect again. MPI_Finalize must come after close(), or from a user who does that in
/// `before_finalise`.
///
/// If some rank's MPI is below MPI_THREAD_MULTIPLE, only connect() and close() call MPI, on the
/// threads that call these, and all messages go through shared memory. If the ranks are on several
/// hosts, or share no memory, connect() throws Error(unavailable) on all ranks instead.
///
/// Lines of the log begin with the rank from here on. Throws Error(invalid_argument) if the
/// communicator is MPI_COMM_NULL; Error(unavailable) if MPI has already been finalised, or if the
/// launcher belongs to another MPI (it started several processes, but each finds itself alone);
/// Error(wire) when MPI fails.
///
/// A tag becomes an MPI tag of 2 bits lane, 12 bits context and, above, as many bits of user tag as
/// MPI_TAG_UB leaves; what does not fit is an Error(invalid_argument).
std::unique_ptr<Transport> connect(const MpiOptions& options = {});

/// For people, one line: "Open MPI v4.1.4, MPI_THREAD_MULTIPLE", or that this process does not use
/// it. Any thread, any time.
std::string describe_mpi();

/// MPI's own way to end all ranks, if it runs. Whether it does is up to the launcher: mpirun
/// --enable-recovery ends only this one.
void abort_mpi();

}  // namespace guozhuang::wire
