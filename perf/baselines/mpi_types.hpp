#pragma once

#include <mpi.h>

#include <guozhuang/types.hpp>

namespace guozhuang::perf {

/// MPI's names for ours. Throw std::invalid_argument naming what MPI does not have.
MPI_Datatype mpi_type(DType dtype);
MPI_Op mpi_op(ReduceOp op);

/// Throws std::runtime_error with MPI's own text unless the code is MPI_SUCCESS.
void check_mpi(int code);

}  // namespace guozhuang::perf
