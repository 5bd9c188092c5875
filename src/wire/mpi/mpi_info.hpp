#pragma once

#include <string>

namespace guozhuang::wire {

/// For people, one line: "Open MPI v4.1.4, MPI_THREAD_MULTIPLE", or that this process does not use it. Any thread, any time.
std::string describe_mpi();

}  // namespace guozhuang::wire
