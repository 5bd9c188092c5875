// The main of tests that run under mpirun: one Session for all test cases, one seed, one verdict.
// Every rank ends with the worst rank's code.
#include "support/runner/runner.hpp"

#include <algorithm>
#include <exception>
#include <guozhuang/session.hpp>
#include <iostream>
#include <mpi.h>
#include <vector>

namespace {

using namespace guozhuang::test;

unsigned common_seed() {
    unsigned seed = chosen_seed();
    MPI_Bcast(&seed, 1, MPI_UNSIGNED, 0, MPI_COMM_WORLD);
    return seed;
}

/// The largest of all ranks' codes; rank 0 names the ranks that failed.
int common_verdict(int code, int rank) {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<int> codes(static_cast<std::size_t>(size));
    MPI_Allgather(&code, 1, MPI_INT, codes.data(), 1, MPI_INT, MPI_COMM_WORLD);
    const int worst = *std::max_element(codes.begin(), codes.end());
    if (worst != 0 && rank == 0) {
        std::cout << "failing ranks:";
        for (int each = 0; each < size; ++each) {
            if (codes[static_cast<std::size_t>(each)] != 0) std::cout << ' ' << each;
        }
        std::cout << " of " << size << std::endl;
    }
    return worst;
}

int run(int argc, char** argv) {
    const Guarded start("the start of the session");
    int provided = 0, rank = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    become_rank(rank, common_seed());
    guozhuang::Session session(&argc, &argv);
    const int own_code = run_cases();
    const Guarded end("the end of the run");
    session.close();
    const int code = common_verdict(own_code, rank);
    MPI_Finalize();
    return code;
}

}  // namespace

int main(int argc, char** argv) try {
    if (const int error = read_command_line(argc, argv); error != 0) return error;
    return run(argc, argv);
} catch (const std::exception& error) {
    std::cerr << "the tests could not run: " << error.what() << std::endl;
    return 1;
}
