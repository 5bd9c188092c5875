#pragma once

#include <guozhuang/session.hpp>
#include <mpi.h>

namespace guozhuang {

/// The caller's communicator, for SessionOptions. The conversion is explicit, so that the address
/// of an MPI_Comm cannot be taken for one.
///
///     gz::Session session(&argc, &argv, {.mpi_communicator = gz::mpi_communicator(comm)});
inline MpiCommunicator mpi_communicator(MPI_Comm communicator) noexcept {
    return MpiCommunicator::of(communicator);
}

}  // namespace guozhuang
