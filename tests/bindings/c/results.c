// Operations with results, and what handles do.
#include <stdlib.h>

#include "cases.h"
#include "check.h"

/// Rank r has r + 1 rows of two columns, all r.
static void fill_rows(float* rows, int64_t* shape) {
    shape[0] = own_rank() + 1;
    shape[1] = 2;
    for (int64_t i = 0; i < 2 * shape[0]; ++i) rows[i] = (float)own_rank();
}

static void expect_all_rows(const GzResult* result, size_t index) {
    GzTensor all;
    const int64_t* rows = NULL;
    size_t count = 0, row = 0;
    const int size = rank_count();
    OK(gz_result_tensor(result, index, &all));
    OK(gz_result_rows(result, index, &rows, &count));
    CHECK(count == (size_t)size && all.dimensions == 2 && all.dtype == GZ_F32);
    CHECK(all.shape[0] == size * (size + 1) / 2 && all.shape[1] == 2);
    for (int rank = 0; rank < size; ++rank) {
        CHECK(rows[rank] == rank + 1);
        for (int i = 0; i <= rank; ++i, ++row) CHECK(((float*)all.data)[2 * row] == (float)rank);
    }
}

static void test_all_gather(const GzTensor* tensor) {
    GzResult* result = NULL;
    GzHandle* handle = NULL;
    size_t count = 0;
    const GzTensor two[] = {*tensor, *tensor};
    OK(gz_all_gather(tensor, NULL, &result));
    expect_all_rows(result, 0);
    gz_result_free(result);
    OK(gz_all_gather_async(tensor, NULL, &handle));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "NULL", gz_handle_take(handle, NULL));  // and takes nothing
    OK(gz_handle_take(handle, &result));
    expect_all_rows(result, 0);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "taken before", gz_handle_take(handle, &result));
    gz_handle_free(handle);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "1 tensors, so no number 1",
          gz_result_tensor(result, 1, &(GzTensor){0}));
    gz_result_free(result);
    OK(gz_grouped_all_gather(two, 2, NULL, &result));
    OK(gz_result_count(result, &count));
    CHECK(count == 2);
    expect_all_rows(result, 1);
    gz_result_free(result);
    OK(gz_grouped_all_gather_async(two, 2, NULL, &handle));
    OK(gz_handle_take(handle, &result));
    expect_all_rows(result, 0);
    gz_result_free(result);
    gz_handle_free(handle);
}

/// Rank r sends r + 1 rows to each rank, or one row by equal parts.
static void test_all_to_all(void) {
    const int size = rank_count(), rank = own_rank();
    int64_t splits[8], extent = (int64_t)size * (rank + 1);
    int sent[64];
    GzResult* result = NULL;
    GzHandle* handle = NULL;
    GzTensor got, tensor = vector_of(sent, GZ_I32, &extent);
    const int64_t* rows = NULL;
    size_t count = 0;
    for (int i = 0; i < size; ++i) splits[i] = rank + 1;
    for (int i = 0; i < extent; ++i) sent[i] = 10 * rank + i / (rank + 1);
    OK(gz_all_to_all(&tensor, splits, (size_t)size, NULL, &result));
    OK(gz_result_tensor(result, 0, &got));
    OK(gz_result_rows(result, 0, &rows, &count));
    for (int from = 0, row = 0; from < size; ++from) {
        CHECK(rows[from] == from + 1);
        for (int i = 0; i <= from; ++i) CHECK(((int*)got.data)[row++] == 10 * from + rank);
    }
    gz_result_free(result);
    extent = size;
    OK(gz_all_to_all_async(&tensor, NULL, 0, NULL, &handle));
    OK(gz_handle_take(handle, &result));
    OK(gz_result_tensor(result, 0, &got));
    CHECK(got.shape[0] == size);
    for (int from = 0; from < size; ++from)
        CHECK(((int*)got.data)[from] == 10 * from + rank / (from + 1));
    gz_result_free(result);
    gz_handle_free(handle);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "splits are given, but their number is 0",
          gz_all_to_all(&tensor, splits, 0, NULL, &result));
    splits[0] += 1;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "splits",
          gz_all_to_all(&tensor, splits, (size_t)size, NULL, &result));
}

static void expect_own_rows(GzResult* result, size_t index, int64_t total) {
    const int size = rank_count(), rank = own_rank();
    const int64_t mine = total / size + (rank < total % size);
    const int64_t* rows = NULL;
    size_t count = 0;
    GzTensor part;
    OK(gz_result_tensor(result, index, &part));
    OK(gz_result_rows(result, index, &rows, &count));
    CHECK(count == 1 && rows[0] == mine && part.shape[0] == mine);
    for (int64_t i = 0; i < mine; ++i) CHECK(((double*)part.data)[i] == size);
}

static void test_reduce_scatter(void) {
    double ones[] = {1, 1, 1, 1, 1, 1, 1};
    const int64_t extent = 7;
    GzResult* result = NULL;
    GzHandle* handle = NULL;
    const GzTensor tensor = vector_of(ones, GZ_F64, &extent);
    const GzTensor two[] = {tensor, tensor};
    OK(gz_reduce_scatter(&tensor, GZ_SUM, NULL, &result));
    expect_own_rows(result, 0, extent);
    gz_result_free(result);
    OK(gz_reduce_scatter_async(&tensor, GZ_SUM, NULL, &handle));
    OK(gz_handle_take(handle, &result));
    expect_own_rows(result, 0, extent);
    gz_result_free(result);
    gz_handle_free(handle);
    OK(gz_grouped_reduce_scatter(two, 2, GZ_SUM, NULL, &result));
    expect_own_rows(result, 1, extent);
    gz_result_free(result);
    OK(gz_grouped_reduce_scatter_async(two, 2, GZ_SUM, NULL, &handle));
    OK(gz_handle_take(handle, &result));
    expect_own_rows(result, 0, extent);
    gz_result_free(result);
    gz_handle_free(handle);
    CHECK(ones[0] == 1);
}

void test_results(void) {
    float rows[16];
    int64_t shape[2];
    fill_rows(rows, shape);
    const GzTensor tensor = {rows, shape, NULL, GZ_F32, 2, {GZ_HOST, 0}};
    test_all_gather(&tensor);
    test_all_to_all();
    test_reduce_scatter();
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

/// On the host's fake of a device, whose work is ordered by streams.
void test_streams(void) {
    float value = 1;
    int done = -1;
    GzHandle* handle = NULL;
    const GzStream stream = {{GZ_FAKE, 0}, NULL};
    const GzTensor tensor = {&value, NULL, NULL, GZ_F32, 0, {GZ_FAKE, 0}};
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
