#include "wire/mpi/mpi_info.hpp"

#include "wire/mpi/mpi_library.hpp"

namespace guozhuang::wire {
namespace {

const char* thread_level() {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    switch (level) {
        case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
        case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
        case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
        default: return "MPI_THREAD_SINGLE";
    }
}

}  // namespace

std::string describe_mpi() {
    return mpi::library_name() + ", " + (mpi::is_running() ? thread_level() : "not running in this process");
}

}  // namespace guozhuang::wire
