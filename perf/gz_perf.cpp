// gz-perf: measures the library beside plain MPI. `gz-perf --help` lists its commands.

#include <array>

#include "program.hpp"

int main(int argc, char** argv) {
    using namespace guozhuang::perf;
    static constexpr std::array baselines{
        BaselineKind{"mpi", make_mpi_baseline}, BaselineKind{"mpi_ring", make_mpi_ring_baseline},
        BaselineKind{"nccl", make_nccl_baseline}, BaselineKind{"pushed", make_pushed_baseline},
        BaselineKind{"staged", make_staged_baseline}};
    return run_program("gz-perf", baselines, argc, argv);
}
