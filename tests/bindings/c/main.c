// Every function of the C interface, run by all ranks of a job.
#include <unistd.h>

#include "check.h"

static void run_all(void) {
    static void (*const cases[])(void) = {
        test_session,    test_forked_child,    test_run_ranks,     test_info,
        test_allreduces, test_groups,          test_broadcasts,    test_results,
        test_outputs,    test_messages,        test_handles,       test_streams,
        test_joins,      test_null_arguments,  test_bad_arguments, test_mismatches,
        test_keep_alive, test_process_sets,    test_memory,        test_plans,
        test_training,   test_failing_batches, test_helpers,
    };
    test_before_init();
    OK(gz_init(NULL));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) cases[i]();
    OK(gz_shutdown());
    test_releases();
    test_after_shutdown();
}

/// Usage: guozhuang_c_conformance [leave]: all cases; or that in which the last rank leaves, after
/// which MPI is not finalised and mpirun calls the job failed.
int main(int argc, char** argv) {
    enum { SECONDS_TO_HANG = 240, FAILED = 3 };
    alarm(SECONDS_TO_HANG);
    if (argc > 1 && strcmp(argv[1], "leave") == 0) {
        OK(gz_init(NULL));
        test_leave();
        OK(gz_shutdown());
        CHECK(!gz_is_initialized());
    } else {
        run_all();
    }
    return failed_checks > 0 ? FAILED : 0;
}
