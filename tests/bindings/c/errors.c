// Calls that fail: their status, their text, and the state that they leave behind.
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

static float value = 1;
static const GzTensor scalar = {&value, NULL, NULL, GZ_F32, 0, {GZ_HOST, 0}};

#define REFUSES_NULL(call) FAILS(GZ_ERROR_INVALID_ARGUMENT, "must not be NULL", call)

static void null_in_operations(void) {
    GzHandle* handle = NULL;
    GzResult* result = NULL;
    REFUSES_NULL(gz_allreduce(NULL, GZ_SUM, NULL));
    REFUSES_NULL(gz_allreduce_async(NULL, GZ_SUM, NULL, &handle));
    REFUSES_NULL(gz_allreduce_async(&scalar, GZ_SUM, NULL, NULL));
    REFUSES_NULL(gz_grouped_allreduce(NULL, 1, GZ_SUM, NULL));
    REFUSES_NULL(gz_grouped_allreduce_async(NULL, 1, GZ_SUM, NULL, &handle));
    REFUSES_NULL(gz_broadcast(NULL, 0, NULL));
    REFUSES_NULL(gz_broadcast_async(&scalar, 0, NULL, NULL));
    REFUSES_NULL(gz_barrier_async(NULL, NULL));
    REFUSES_NULL(gz_join_async(NULL, NULL));
    REFUSES_NULL(gz_send(NULL, 0, 0, NULL));
    REFUSES_NULL(gz_send_async(&scalar, 0, 0, NULL, NULL));
    REFUSES_NULL(gz_recv(NULL, 0, 0, NULL));
    REFUSES_NULL(gz_recv_async(&scalar, 0, 0, NULL, NULL));
    REFUSES_NULL(gz_all_gather(NULL, NULL, &result));
    REFUSES_NULL(gz_all_gather(&scalar, NULL, NULL));
    REFUSES_NULL(gz_all_gather_async(&scalar, NULL, NULL));
    REFUSES_NULL(gz_all_to_all(&scalar, NULL, 2, NULL, &result));
    REFUSES_NULL(gz_all_to_all_async(&scalar, NULL, 2, NULL, &handle));
    REFUSES_NULL(gz_reduce_scatter(&scalar, GZ_SUM, NULL, NULL));
    REFUSES_NULL(gz_reduce_scatter_async(&scalar, GZ_SUM, NULL, NULL));
    REFUSES_NULL(gz_grouped_all_gather(NULL, 2, NULL, &result));
    REFUSES_NULL(gz_grouped_all_gather_async(NULL, 2, NULL, &handle));
    REFUSES_NULL(gz_grouped_reduce_scatter(NULL, 2, GZ_SUM, NULL, &result));
    REFUSES_NULL(gz_grouped_reduce_scatter_async(NULL, 2, GZ_SUM, NULL, &handle));
    CHECK(handle == NULL && result == NULL);
}

static void null_in_handles_and_results(void) {
    int number = 0;
    size_t count = 0;
    const int64_t* rows = NULL;
    GzResult* result = NULL;
    GzTensor tensor;
    const GzStream stream = {{GZ_HOST, 0}, NULL};
    REFUSES_NULL(gz_handle_wait(NULL));
    REFUSES_NULL(gz_handle_wait_for(NULL, 0, &number));
    REFUSES_NULL(gz_handle_wait_stream(NULL, &stream));
    REFUSES_NULL(gz_handle_wait_stream_for(NULL, &stream, 0, &number));
    REFUSES_NULL(gz_handle_test(NULL, &number));
    REFUSES_NULL(gz_handle_take(NULL, &result));
    REFUSES_NULL(gz_handle_last_rank(NULL, &number));
    REFUSES_NULL(gz_result_count(NULL, &count));
    REFUSES_NULL(gz_result_tensor(NULL, 0, &tensor));
    REFUSES_NULL(gz_result_rows(NULL, 0, &rows, &count));
    gz_handle_free(NULL);
    gz_result_free(NULL);
}

static void null_in_memory_and_plans(void) {
    GzArena* arena = NULL;
    GzSharedMemory* memory = NULL;
    GzPlan* plan = NULL;
    void* address = NULL;
    size_t bytes = 0;
    int shared = 0;
    uint64_t joins = 0;
    const char* name = NULL;
    REFUSES_NULL(gz_arena_create(1, NULL, NULL));
    REFUSES_NULL(gz_arena_allocate(arena, 1, 0, &address));
    REFUSES_NULL(gz_arena_bytes(NULL, &bytes));
    REFUSES_NULL(gz_arena_is_shared(NULL, &shared));
    REFUSES_NULL(gz_share(NULL, 1, &memory));
    REFUSES_NULL(gz_shared_memory_is_shared(NULL, &shared));
    REFUSES_NULL(gz_plan_create(NULL, NULL, 1, NULL, &plan));
    REFUSES_NULL(gz_plan_ready(NULL, 0));
    REFUSES_NULL(gz_plan_ready_streams(NULL, 0, NULL, 0));
    REFUSES_NULL(gz_plan_wait(NULL));
    REFUSES_NULL(gz_plan_wait_streams(NULL, NULL, 0));
    REFUSES_NULL(gz_plan_wait_for(NULL, NULL, 0, 0, &shared));
    REFUSES_NULL(gz_plan_agree(NULL, NULL, 0));
    REFUSES_NULL(gz_plan_size(NULL, &bytes));
    REFUSES_NULL(gz_plan_name(NULL, &name));
    REFUSES_NULL(gz_plan_discard(NULL, "reason"));
    REFUSES_NULL(gz_plan_joins(NULL, &joins));
    gz_arena_free(NULL);
    gz_shared_memory_free(NULL);
    gz_plan_free(NULL);
}

static void null_in_training(void) {
    GzReducer* reducer = NULL;
    GzBytes* bytes = NULL;
    GzSampler* sampler = NULL;
    const size_t* indices = NULL;
    const void* data = NULL;
    size_t count = 0;
    double metric = 0;
    int done = 0;
    const char* no_name = NULL;
    const GzParameter nameless = {NULL, scalar, scalar};
    REFUSES_NULL(gz_reducer_create(NULL, 1, NULL, &reducer));
    REFUSES_NULL(gz_reducer_mark(NULL, 0));
    REFUSES_NULL(gz_reducer_mark_name(NULL, "w"));
    REFUSES_NULL(gz_reducer_set_stream(NULL, NULL));
    REFUSES_NULL(gz_reducer_synchronize(NULL));
    REFUSES_NULL(gz_reducer_synchronize_for(NULL, 0, &done));
    REFUSES_NULL(gz_reducer_finish_pass(NULL, NULL, NULL, NULL));
    REFUSES_NULL(gz_reducer_discard(NULL, "reason"));
    REFUSES_NULL(gz_reducer_pause(NULL));
    REFUSES_NULL(gz_reducer_resume(NULL));
    REFUSES_NULL(gz_reducer_close(NULL));
    REFUSES_NULL(gz_reducer_is_used(NULL, 0, &done));
    REFUSES_NULL(gz_reducer_is_closed(NULL, &done));
    REFUSES_NULL(gz_reducer_is_synchronised(NULL, &done));
    REFUSES_NULL(gz_broadcast_parameters(NULL, 1, 0, NULL));
    REFUSES_NULL(gz_broadcast_optimizer_state(NULL, 1, 0, NULL));
    REFUSES_NULL(gz_check_consistent(NULL, 1, NULL, NULL));
    REFUSES_NULL(gz_clip_by_global_norm(NULL, 1, 1, NULL, NULL));
    REFUSES_NULL(gz_average_metrics(NULL, &metric, 1, NULL));
    REFUSES_NULL(gz_average_metrics(&no_name, &metric, 1, NULL));
    REFUSES_NULL(gz_broadcast_parameters(&nameless, 1, 0, NULL));
    REFUSES_NULL(gz_scale_learning_rate(1, NULL, NULL));
    REFUSES_NULL(gz_steps_per_epoch(1, 1, NULL, NULL));
    REFUSES_NULL(gz_broadcast_bytes(NULL, 1, 0, NULL, &bytes));
    REFUSES_NULL(gz_all_gather_bytes("a", 1, NULL, NULL));
    REFUSES_NULL(gz_bytes_count(NULL, &count));
    REFUSES_NULL(gz_bytes_get(NULL, 0, &data, &count));
    REFUSES_NULL(gz_sampler_create(1, NULL, NULL));
    REFUSES_NULL(gz_sampler_set_epoch(sampler, 0));
    REFUSES_NULL(gz_sampler_indices(NULL, &indices, &count));
    gz_reducer_free(NULL);
    gz_bytes_free(NULL);
    gz_sampler_free(NULL);
}

static void null_in_the_rest(void) {
    GzProcessSet* set = NULL;
    GzInfo* info = NULL;
    size_t count = 0;
    uint64_t bytes = 0;
    const char* text = NULL;
    int started = 0;
    REFUSES_NULL(gz_rank(NULL));
    REFUSES_NULL(gz_size(NULL));
    REFUSES_NULL(gz_local_rank(NULL));
    REFUSES_NULL(gz_local_size(NULL));
    REFUSES_NULL(gz_cross_rank(NULL));
    REFUSES_NULL(gz_cross_size(NULL));
    REFUSES_NULL(gz_is_homogeneous(NULL));
    REFUSES_NULL(gz_run_ranks(1, NULL, NULL, NULL));
    REFUSES_NULL(gz_exit_hold_create(1, NULL));
    REFUSES_NULL(gz_process_set_create(NULL, 1, &set));
    REFUSES_NULL(gz_process_set_remove(NULL));
    REFUSES_NULL(gz_process_set_rank(NULL, NULL));
    REFUSES_NULL(gz_process_set_ranks(NULL, NULL, 1));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "room for 0", gz_process_set_ranks(NULL, NULL, 0));
    REFUSES_NULL(gz_start_timeline(NULL, &started));
    REFUSES_NULL(gz_log_message(GZ_LOG_INFO, NULL));
    REFUSES_NULL(gz_traffic(&bytes, NULL));
    REFUSES_NULL(gz_info_create(NULL));
    REFUSES_NULL(gz_info_count(NULL, &count));
    REFUSES_NULL(gz_info_get(info, 0, &text, &text, &text));
    gz_process_set_free(NULL);
    gz_exit_hold_free(NULL);
    gz_info_free(NULL);
}

void test_null_arguments(void) {
    null_in_operations();
    null_in_handles_and_results();
    null_in_memory_and_plans();
    null_in_training();
    null_in_the_rest();
}

void test_bad_arguments(void) {
    GzTensor tensor = scalar;
    GzOptions options = GZ_OPTIONS_INIT;
    const int64_t shape[] = {2, 2}, strides[] = {1, 2};
    float square[4] = {0};
    const GzTensor columns = {square, shape, strides, GZ_F32, 2, {GZ_HOST, 0}};
    const GzTensor negative = {square, shape, NULL, GZ_F32, -1, {GZ_HOST, 0}};
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "not contiguous: shape [2, 2] with strides [1, 2]",
          gz_allreduce(&columns, GZ_SUM, NULL));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "-1 dimensions", gz_allreduce(&negative, GZ_SUM, NULL));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no reduce op 6", gz_allreduce(&scalar, 6, NULL));
    tensor.shape = shape;  // as if the number of dimensions had been forgotten
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "extents are given, but their number is 0",
          gz_allreduce(&tensor, GZ_SUM, NULL));
    tensor = scalar;
    tensor.dtype = 0;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "dtype has not been set", gz_allreduce(&tensor, GZ_SUM, NULL));
    tensor.dtype = 256;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no dtype 256", gz_allreduce(&tensor, GZ_SUM, NULL));
    tensor.dtype = GZ_BOOLEAN;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "not defined on bool", gz_allreduce(&tensor, GZ_SUM, NULL));
    tensor.device.kind = -1;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no device kind -1", gz_broadcast(&tensor, 0, NULL));
    options.name = "bias";
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "broadcast 'bias': root 77 is not a rank",
          gz_broadcast(&scalar, 77, &options));
    CHECK(strcmp(gz_last_error()->tensor, "bias") == 0);
    CHECK(strcmp(gz_last_error()->operation, "broadcast") == 0);
    CHECK(gz_last_error()->status == GZ_ERROR_INVALID_ARGUMENT);
    options.prescale = 2;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no scales", gz_barrier(&options));
    options.size = 0;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "options of 0 bytes", gz_barrier(&options));
    options.size = sizeof options + 8;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "later version", gz_barrier(&options));
    options.size = offsetof(GzOptions, prescale);  // those of an older header: the rest is default
    OK(gz_barrier(&options));
    CHECK(strcmp(gz_status_name(GZ_OK), "ok") == 0);
    CHECK(strcmp(gz_status_name(GZ_ERROR_MISMATCH), "mismatch") == 0);
    CHECK(strcmp(gz_status_name(-5), "unknown") == 0 && strcmp(gz_status_name(99), "unknown") == 0);
}

/// The last rank is killed, and the others learn so.
void test_death(void) {
    const int last = rank_count() - 1;
    // Then all have a session. One that is slow to leave the barrier may learn of the death here.
    const GzStatus left = gz_barrier(NULL);
    CHECK(left == GZ_OK || left == GZ_ERROR_RANK_DIED);
    if (own_rank() == last) raise(SIGKILL);
    FAILS(GZ_ERROR_RANK_DIED, "killed by signal 9", gz_allreduce(&scalar, GZ_SUM, NULL));
    CHECK(gz_last_error()->rank_count == 1 && gz_last_error()->ranks[0] == last);
    FAILS(GZ_ERROR_RANK_DIED, "killed by signal 9", gz_barrier(NULL));
    if (failed_checks == 0) puts("the death was told");
    fflush(stdout);  // the library ends this process soon
}

/// Nobody comes to the operation of rank 0, at whose limit the job ends for all.
void test_timeout(void) {
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "lonely";
    options.timeout_ms = 100;
    if (own_rank() == 0)
        FAILS(GZ_ERROR_TIMEOUT, "lonely", gz_allreduce(&scalar, GZ_SUM, &options));
    else
        FAILS(GZ_ERROR_TIMEOUT, "lonely", gz_recv(&scalar, 0, 0, NULL));
    FAILS(GZ_ERROR_TIMEOUT, "lonely", gz_barrier(NULL));
    if (failed_checks == 0) puts("the timeout was told");
}

/// The last rank is killed, and the others go on without it, and without what is older.
void test_shrink(void) {
    const int gone = rank_count() - 1;
    const int pair[] = {0, 1}, others[] = {0, 1, 2};
    int sum = own_rank() == gone ? getpid() : 0, process = 0;
    const GzTensor own = {&sum, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    GzOptions options = GZ_OPTIONS_INIT;
    GzProcessSet *old = NULL, *set = NULL;
    GzHandle* pending = NULL;
    OK(gz_allreduce(&own, GZ_SUM, NULL));
    process = sum;
    OK(gz_process_set_create(others, 3, &old));
    while (own_rank() == gone) pause();
    OK(gz_allreduce_async(&scalar, GZ_SUM, NULL, &pending));
    options.process_set = old;
    gz_barrier(&options);  // over on rank 0 when all have come so far; elsewhere it may fail
    if (own_rank() == 0) kill(process, SIGKILL);
    FAILS(GZ_ERROR_RANK_DIED, "killed by signal 9", gz_handle_wait(pending));
    OK(gz_shrink());
    CHECK(rank_count() == gone && own_rank() < gone);
    FAILS(GZ_ERROR_RANK_DIED, "killed by signal 9", gz_handle_wait(pending));
    gz_handle_free(pending);
    FAILS(GZ_ERROR_NOT_INITIALISED, "before it shrank", gz_allreduce(&own, GZ_SUM, &options));
    gz_process_set_free(old);
    sum = 1 + own_rank();
    OK(gz_allreduce(&own, GZ_SUM, NULL));
    CHECK(sum == gone * (gone + 1) / 2);
    OK(gz_process_set_create(pair, 2, &set));
    options.process_set = set;
    if (own_rank() < 2) OK(gz_allreduce(&own, GZ_MAX, &options));
    gz_process_set_free(set);
    if (own_rank() == 0 && failed_checks == 0) printf("%d ranks go on\n", gone);
}

static int releases, expected_releases;

static void release(void* owner) {
    __atomic_fetch_add((int*)owner, 1, __ATOMIC_SEQ_CST);
}

void test_keep_alive(void) {
    GzOptions options = GZ_OPTIONS_INIT;
    GzHandle* handle = NULL;
    options.keep_alive.release = release;
    options.keep_alive.owner = &releases;
    const int before = __atomic_load_n(&releases, __ATOMIC_SEQ_CST);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "", gz_broadcast(&scalar, 77, &options));
    REFUSES_NULL(gz_allreduce(NULL, GZ_SUM, &options));
    REFUSES_NULL(gz_allreduce_async(&scalar, GZ_SUM, &options, NULL));
    REFUSES_NULL(gz_all_gather(&scalar, &options, NULL));
    CHECK(__atomic_load_n(&releases, __ATOMIC_SEQ_CST) == before + 4);
    options.name = "kept until rank 0 comes";
    if (own_rank() != 0) {
        OK(gz_allreduce_async(&scalar, GZ_SUM, &options, &handle));
        CHECK(__atomic_load_n(&releases, __ATOMIC_SEQ_CST) == before + 4);
    }
    OK(gz_barrier(NULL));
    if (own_rank() == 0) OK(gz_allreduce_async(&scalar, GZ_SUM, &options, &handle));
    OK(gz_handle_wait(handle));
    gz_handle_free(handle);
    expected_releases = before + 5;
}

/// After the shutdown, since the library may let go on a thread of its own.
void test_releases(void) {
    CHECK(__atomic_load_n(&releases, __ATOMIC_SEQ_CST) == expected_releases);
}
