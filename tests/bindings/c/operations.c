// Results, handles, messages and joins, as far as they are C's own; tests/conformance has the rest.
#include "cases.h"
#include "check.h"

void test_results(void) {
    int value = own_rank();
    const int64_t one = 1;
    size_t count = 0;
    GzResult* result = NULL;
    GzHandle* handle = NULL;
    const GzTensor tensor = vector_of(&value, GZ_I32, &one);
    OK(gz_all_gather_async(&tensor, NULL, &handle));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "NULL", gz_handle_take(handle, NULL));  // and takes nothing
    OK(gz_handle_take(handle, &result));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "taken before", gz_handle_take(handle, &result));
    gz_handle_free(handle);
    OK(gz_result_count(result, &count));
    CHECK(count == 1);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "1 tensors, so no number 1",
          gz_result_tensor(result, 1, &(GzTensor){0}));
    gz_result_free(result);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "splits are given, but their number is 0",
          gz_all_to_all(&tensor, &one, 0, NULL, &result));
}

void test_outputs(void) {
    const int size = rank_count();
    const int64_t one = 1, all = size, wrong = size + 1;
    int value = own_rank(), gathered[8] = {0};
    const GzTensor tensor = vector_of(&value, GZ_I32, &one);
    GzTensor output = vector_of(gathered, GZ_I32, &all), got;
    GzResult* result = NULL;
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "into memory of mine";
    options.outputs = &output;
    options.output_count = 1;
    OK(gz_all_gather(&tensor, &options, &result));
    OK(gz_result_tensor(result, 0, &got));
    CHECK(got.data == gathered && gathered[size - 1] == size - 1);
    gz_result_free(result);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "output", gz_allreduce(&tensor, GZ_SUM, &options));
    options.output_count = 0;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "outputs are given, but their number is 0",
          gz_all_gather(&tensor, &options, &result));
    options.output_count = 1;
    output.shape = &wrong;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "rows, but its result has",
          gz_all_gather(&tensor, &options, &result));
}

/// As a trainer that keeps a part of the optimizer's state on each rank: the gradient's own part is
/// summed up where it lies, and the updated part is gathered from there.
void test_in_place(void) {
    const int size = rank_count(), self = own_rank();
    float flat[64] = {0};
    int64_t splits[8], rows = 0, own_begin = 0;
    for (int rank = 0; rank < size; ++rank) {
        splits[rank] = rank == 0 ? 5 : rank + 1;
        if (rank < self) own_begin += splits[rank];
        rows += splits[rank];
    }
    for (int64_t i = 0; i < rows; ++i) flat[i] = (float)i;
    const GzTensor whole = vector_of(flat, GZ_F32, &rows);
    const GzTensor own = vector_of(flat + own_begin, GZ_F32, &splits[self]);
    GzResult* result = NULL;
    GzOptions options = GZ_OPTIONS_INIT;
    options.outputs = &own;
    options.output_count = 1;
    options.splits = splits;
    options.split_count = (size_t)size;
    OK(gz_reduce_scatter(&whole, GZ_SUM, &options, &result));
    gz_result_free(result);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no splits", gz_allreduce(&whole, GZ_SUM, &options));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no splits", gz_all_gather(&own, &options, &result));
    options.splits = NULL;
    options.split_count = 0;
    options.outputs = &whole;
    OK(gz_all_gather(&own, &options, &result));
    gz_result_free(result);
    for (int64_t i = 0; i < rows; ++i) CHECK(flat[i] == (float)(i * size));
}

void test_handles(void) {
    float value = 1;
    int done = -1;
    GzHandle* handle = NULL;
    GzResult* result = NULL;
    const GzTensor tensor = {&value, NULL, NULL, GZ_F32, 0, {GZ_HOST, 0}};
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "waits for rank 0";
    if (own_rank() != 0) {
        OK(gz_allreduce_async(&tensor, GZ_SUM, &options, &handle));
        OK(gz_handle_wait_for(handle, 1000, &done));
        CHECK(done == 0);
        OK(gz_handle_wait_for(handle, INT64_MIN, &done));
        CHECK(done == 0);
        OK(gz_handle_test(handle, &done));
        CHECK(done == 0);
        FAILS(GZ_ERROR_DUPLICATE_NAME, "waits for rank 0", gz_allreduce(&tensor, GZ_SUM, &options));
    }
    OK(gz_barrier(NULL));
    if (own_rank() == 0) OK(gz_allreduce_async(&tensor, GZ_SUM, &options, &handle));
    OK(gz_handle_wait_for(handle, INT64_MAX, &done));
    CHECK(done == 1);
    OK(gz_handle_test(handle, &done));
    CHECK(done == 1 && value == (float)rank_count());
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no result", gz_handle_take(handle, &result));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no join", gz_handle_last_rank(handle, &done));
    gz_handle_free(handle);
    OK(gz_allreduce_async(&tensor, GZ_SUM, NULL, &handle));
    gz_handle_free(handle);  // the operation goes on
    OK(gz_allreduce_async(&tensor, GZ_SUM, NULL, &handle));
    OK(gz_handle_wait(handle));
    gz_handle_free(handle);
}

/// On the fake device, whose work is ordered by streams.
void test_streams(void) {
    float value = 1;
    int done = -1;
    GzHandle* handle = NULL;
    const GzStream stream = {{GZ_CUDA, 0}, NULL};
    const GzTensor tensor = {&value, NULL, NULL, GZ_F32, 0, {GZ_CUDA, 0}};
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "on a stream";
    options.stream = &stream;
    OK(gz_allreduce_async(&tensor, GZ_SUM, &options, &handle));
    OK(gz_handle_wait_stream_for(handle, &stream, INT64_MAX, &done));
    CHECK(done == 1);
    OK(gz_handle_wait_stream(handle, &stream));
    OK(gz_handle_wait(handle));
    CHECK(value == (float)rank_count());
    gz_handle_free(handle);
}

/// Sent around a ring.
void test_messages(void) {
    const int size = rank_count(), rank = own_rank();
    const int64_t one = 1;
    int sent = 100 + rank, received = -1;
    const GzTensor out = vector_of(&sent, GZ_I32, &one), in = vector_of(&received, GZ_I32, &one);
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    GzHandle *sending = NULL, *receiving = NULL;
    OK(gz_send_async(&out, right, 7, NULL, &sending));
    OK(gz_recv(&in, left, 7, NULL));
    OK(gz_handle_wait(sending));
    CHECK(received == 100 + left);
    gz_handle_free(sending);
    received = -1;
    OK(gz_recv_async(&in, left, 8, NULL, &receiving));
    OK(gz_send(&out, right, 8, NULL));
    OK(gz_handle_wait(receiving));
    CHECK(received == 100 + left);
    gz_handle_free(receiving);
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "named";
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no name", gz_send(&out, right, 7, &options));
}

void test_joins(void) {
    int last = -1;
    OK(gz_join(NULL, &last));
    CHECK(last >= 0 && last < rank_count());
    OK(gz_join(NULL, NULL));
}
