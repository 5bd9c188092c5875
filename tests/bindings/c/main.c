// Tests that only the C interface needs, run by all ranks of a job.
#include <unistd.h>

#include "cases.h"
#include "check.h"

static void run_all(void) {
    static void (*const cases[])(void) = {
        test_session,    test_forked_child,    test_run_ranks,      test_info,
        test_results,    test_outputs,         test_handles,        test_streams,
        test_messages,   test_joins,           test_null_arguments, test_bad_arguments,
        test_keep_alive, test_process_sets,    test_memory,         test_plans,
        test_training,   test_failing_batches, test_helpers,        test_in_place,
    };
    test_before_init();
    OK(gz_init(NULL));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) cases[i]();
    OK(gz_shutdown());
    test_releases();
    test_after_shutdown();
    test_at_exit();
}

/// One after which mpirun calls the job failed.
static void run_last(void (*test)(void)) {
    GzInitOptions options = GZ_INIT_OPTIONS_INIT;
    if (test == test_shrink) options.time_to_shrink_ms = 30000;
    OK(gz_init(&options));
    test();
    if (gz_shutdown() != GZ_OK) CHECK(test != test_leave);
}

/// Usage: guozhuang_c_tests [leave|death|timeout|shrink]: all cases, or one that ends the job.
int main(int argc, char** argv) {
    enum { SECONDS_TO_HANG = 240, FAILED = 3 };
    const char* chosen = argc > 1 ? argv[1] : "";
    alarm(SECONDS_TO_HANG);
    if (strcmp(chosen, "leave") == 0)
        run_last(test_leave);
    else if (strcmp(chosen, "death") == 0)
        run_last(test_death);
    else if (strcmp(chosen, "timeout") == 0)
        run_last(test_timeout);
    else if (strcmp(chosen, "shrink") == 0)
        run_last(test_shrink);
    else
        run_all();
    return failed_checks > 0 ? FAILED : 0;
}
