// The session, and what the library tells.
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

void test_before_init(void) {
    int rank = -1, sum = 0;
    const GzTensor tensor = {&sum, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    GzInitOptions options = GZ_INIT_OPTIONS_INIT;
    CHECK(!gz_is_initialized());
    CHECK(gz_last_error()->status == GZ_OK && gz_last_error()->message[0] == '\0');
    FAILS(GZ_ERROR_NOT_INITIALISED, "there is no session", gz_rank(&rank));
    FAILS(GZ_ERROR_NOT_INITIALISED, "there is no session", gz_allreduce(&tensor, GZ_SUM, NULL));
    CHECK(rank == -1);
    options.mpi_communicator = &options;
    options.mpi_communicator_bytes = 3;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "sizeof(MPI_Comm)", gz_init(&options));
    options.mpi_communicator_bytes = 12 - sizeof(MPI_Comm);  // that of another MPI
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "it is not one of this MPI's", gz_init(&options));
    CHECK(!gz_is_initialized());
    OK(gz_shutdown());  // one too many does nothing
    CHECK(strcmp(gz_version(), "0.1.0") == 0);
}

void test_after_shutdown(void) {
    int rank = -1;
    CHECK(!gz_is_initialized());
    FAILS(GZ_ERROR_NOT_INITIALISED, "has been closed", gz_rank(&rank));
    FAILS(GZ_ERROR_NOT_INITIALISED, "has been closed", gz_barrier(NULL));
    FAILS(GZ_ERROR_NOT_INITIALISED, "has been closed", gz_leave("there is nothing to leave"));
}

/// An error of another thread is not this one's.
static void* fail_elsewhere(void* unused) {
    int rank = -1;
    CHECK(gz_last_error()->message[0] == '\0');
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "must not be NULL", gz_rank(NULL));
    OK(gz_rank(&rank));
    return unused;
}

void test_session(void) {
    int rank = own_rank(), size = rank_count(), number = -1, hosts = -1;
    pthread_t thread;
    CHECK(gz_is_initialized() && rank >= 0 && rank < size);
    OK(gz_local_rank(&number));
    CHECK(number == rank);
    OK(gz_local_size(&number));
    CHECK(number == size);
    OK(gz_cross_rank(&number));
    OK(gz_cross_size(&hosts));
    CHECK(number == 0 && hosts == 1);
    OK(gz_is_homogeneous(&number));
    CHECK(number == 1);
    OK(gz_init(NULL));  // counted
    OK(gz_shutdown());
    OK(gz_barrier(NULL));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "there is no reduce op 99",
          gz_allreduce(&(GzTensor){0}, 99, NULL));
    CHECK(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strstr(gz_last_error()->message, "99") != NULL);
    GzExitHold* hold = NULL;
    OK(gz_exit_hold_create(1, &hold));
    gz_exit_hold_free(hold);
}

void test_forked_child(void) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        int rank = -1;
        FAILS(GZ_ERROR_UNAVAILABLE, "fork", gz_rank(&rank));
        FAILS(GZ_ERROR_UNAVAILABLE, "fork", gz_barrier(NULL));
        OK(gz_shutdown());
        _exit(failed_checks > 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/// Every thread is a rank of its own, with a last error of its own.
static int body(void* context) {
    OK(gz_init(NULL));  // which its trainer may do here, too
    OK(gz_shutdown());
    OK(gz_shutdown());
    int rank = own_rank(), size = rank_count(), sum = rank;
    char text[64];
    const GzTensor tensor = {&sum, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    snprintf(text, sizeof text, "root %d is not a rank", 10 + rank);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, text, gz_broadcast(&tensor, 10 + rank, NULL));
    OK(gz_allreduce(&tensor, GZ_SUM, NULL));
    CHECK(sum == size * (size - 1) / 2 && strstr(gz_last_error()->message, text) != NULL);
    __atomic_fetch_add((int*)context, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/// Rank 1 fails with an error, or, after one that it can do without, with a number of its own.
static int failing_body(void* own_number) {
    float value = 1;
    const GzTensor tensor = {&value, NULL, NULL, GZ_F32, 0, {GZ_HOST, 0}};
    if (own_rank() != 1) return gz_barrier(NULL);
    const int status = gz_broadcast(&tensor, 31, NULL);
    return own_number == NULL ? status : *(int*)own_number;
}

/// The last rank leaves at once, and the others learn why.
static int leaving_body(void* unused) {
    int rank = -1;
    (void)unused;
    if (own_rank() == rank_count() - 1) {
        OK(gz_leave("no such file data.bin"));
        FAILS(GZ_ERROR_NOT_INITIALISED, "closed", gz_rank(&rank));
    } else {
        FAILS(GZ_ERROR_DEPARTED, "has shut down (no such file data.bin)", gz_barrier(NULL));
    }
    return 0;
}

void test_leave(void) {
    const int leaves = own_rank() == rank_count() - 1;
    OK(gz_init(NULL));  // counted, and over with the rest
    leaving_body(NULL);
    CHECK(gz_is_initialized() == !leaves);
}

/// Runs after main(): the session has been closed, and gz_last_error() still works.
static void at_exit(void) {
    int rank = -1;
    FAILS(GZ_ERROR_NOT_INITIALISED, "has been closed", gz_rank(&rank));
    CHECK(gz_last_error()->status == GZ_ERROR_NOT_INITIALISED);
    if (failed_checks > 0) _exit(1);
}

void test_at_exit(void) {
    CHECK(gz_last_error()->status != GZ_OK);
    CHECK(atexit(at_exit) == 0);
}

void test_run_ranks(void) {
    int ranks = 0, number = -7;
    GzRankOptions options = GZ_RANK_OPTIONS_INIT;
    OK(gz_run_ranks(5, body, &ranks, NULL));
    CHECK(ranks == 5);
    options.take_turns = 1;
    options.turns = 7;
    options.hosts = 2;
    OK(gz_run_ranks(4, body, &ranks, &options));
    CHECK(ranks == 9);
    OK(gz_run_ranks(3, leaving_body, NULL, NULL));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "root 31", gz_run_ranks(2, failing_body, NULL, NULL));
    FAILS(GZ_ERROR_CALLBACK, "returned -7", gz_run_ranks(2, failing_body, &number, NULL));
    OK(gz_barrier(NULL));  // the job that this process belongs to goes on
}

static char logged[200];

static void on_message(GzLogLevel level, const char* message, void* context) {
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "by the log's callback", gz_set_log_callback(NULL, NULL));
    snprintf(context, sizeof logged, "%d %s", (int)level, message);
}

static void test_timeline(void) {
    char directory[] = "/tmp/guozhuang-c-XXXXXX", file[64];
    int started = -1;
    CHECK(mkdtemp(directory) != NULL);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "NULL", gz_start_timeline(directory, NULL));
    OK(gz_start_timeline(directory, &started));
    CHECK(started == 1);  // what failed has started nothing
    OK(gz_barrier(NULL));
    OK(gz_start_timeline(directory, &started));
    CHECK(started == 0);
    OK(gz_stop_timeline());
    snprintf(file, sizeof file, "%s/rank%d.json", directory, own_rank());
    CHECK(remove(file) == 0);
    CHECK(rmdir(directory) == 0);
}

void test_info(void) {
    GzInfo* info = NULL;
    size_t count = 0, versions = 0;
    uint64_t bytes = 0, messages = 0;
    const char *section = NULL, *key = NULL, *value = NULL;
    OK(gz_set_log_callback(on_message, logged));
    OK(gz_log_message(GZ_LOG_ERROR, "hello"));
    CHECK(strcmp(logged, "3 hello") == 0);
    test_timeline();  // its warning is logged, too
    CHECK(strstr(logged, "2 ") == logged);
    OK(gz_set_log_callback(NULL, NULL));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "log level 4", gz_log_message(GZ_LOG_OFF, "no"));
    OK(gz_info_create(&info));
    OK(gz_info_count(info, &count));
    for (size_t i = 0; i < count; ++i) {
        OK(gz_info_get(info, i, &section, &key, &value));
        versions += strcmp(section, "build") == 0 && strstr(value, gz_version()) != NULL;
    }
    CHECK(versions > 0);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "items", gz_info_get(info, count, &section, &key, &value));
    gz_info_free(info);
    OK(gz_traffic(&bytes, &messages));
    CHECK(rank_count() == 1 || bytes > 0);
}
