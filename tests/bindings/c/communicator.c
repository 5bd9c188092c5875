// A job whose ranks are those of the caller's MPI communicator, which may then be freed.
#include <mpi.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char** argv) {
    enum { SECONDS_TO_HANG = 120 };
    int world_rank = -1, world_size = -1, level = 0, sum = 1;
    MPI_Comm reversed;
    GzInitOptions options = GZ_INIT_OPTIONS_INIT;
    const GzTensor tensor = {&sum, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    alarm(SECONDS_TO_HANG);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
    // As a program in Fortran would pass it.
    MPI_Comm passed = MPI_Comm_f2c(MPI_Comm_c2f(reversed));
    options.mpi_communicator = &passed;
    options.mpi_communicator_bytes = sizeof passed;
    OK(gz_init(&options));
    MPI_Comm_free(&reversed);
    CHECK(own_rank() == world_size - 1 - world_rank);
    OK(gz_allreduce(&tensor, GZ_SUM, NULL));
    CHECK(sum == world_size);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "there is one already", gz_init(&options));
    OK(gz_barrier(NULL));
    OK(gz_shutdown());
    MPI_Finalize();
    return failed_checks > 0;
}
