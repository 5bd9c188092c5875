#pragma once

#include <guozhuang/session.hpp>
#include <mpi.h>

namespace guozhuang {

/// A communicator of the caller's for SessionOptions. Neither an MPI_Comm nor its address becomes
/// one by itself.
///
///     gz::Session session(&argc, &argv, {.mpi_communicator = gz::mpi_communicator(comm)});
inline MpiCommunicator mpi_communicator(MPI_Comm communicator) noexcept {
    return MpiCommunicator::of(communicator);
}

}  // namespace guozhuang
