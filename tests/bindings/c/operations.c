// The operations against results that are computed here, for every dtype.
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "check.h"

enum { COUNT = 5 };
static const int64_t extent[] = {COUNT};

/// What a rank contributes: from 1 to 3.
static double given(int rank, size_t i) {
    return 1 + (rank + (int)i) % 3;
}

static double expected(GzReduceOp op, GzDType dtype, size_t i) {
    const int is_floating = dtype >= GZ_F16 && dtype <= GZ_F64;
    const int size = rank_count();
    double value = given(0, i);
    for (int rank = 1; rank < size; ++rank) {
        const double next = given(rank, i);
        if (op == GZ_SUM || op == GZ_AVERAGE) value += next;
        if (op == GZ_MIN) value = fmin(value, next);
        if (op == GZ_MAX) value = fmax(value, next);
        if (op == GZ_PRODUCT) value *= next;
    }
    if (op == GZ_AVERAGE) value = is_floating ? value / size : floor(value / size);
    return value;
}

static void expect_reduced(const void* data, GzReduceOp op, GzDType dtype) {
    for (size_t i = 0; i < COUNT; ++i) {
        const double value = expected(op, dtype, i);
        // Sums and products of few small integers are exact in all dtypes; averages are rounded.
        const double off = op != GZ_AVERAGE ? 0 : dtype == GZ_BF16 ? value / 256 : value / 2048;
        CHECK(fabs(get_element(data, dtype, i) - value) <= off);
    }
}

static void fill(void* data, GzDType dtype) {
    for (size_t i = 0; i < COUNT; ++i) set_element(data, dtype, i, given(own_rank(), i));
}

void test_allreduces(void) {
    double memory[COUNT];
    for (GzDType dtype = GZ_U8; dtype <= GZ_U64; ++dtype) {
        if (dtype == GZ_BOOLEAN) continue;
        const GzTensor tensor = vector_of(memory, dtype, extent);
        for (GzReduceOp op = GZ_SUM; op <= GZ_PRODUCT; ++op) {
            GzHandle* handle = NULL;
            fill(memory, dtype);
            OK(gz_allreduce(&tensor, op, NULL));
            expect_reduced(memory, op, dtype);
            fill(memory, dtype);
            OK(gz_allreduce_async(&tensor, op, NULL, &handle));
            OK(gz_handle_wait(handle));
            expect_reduced(memory, op, dtype);
            gz_handle_free(handle);
        }
    }
    const GzTensor flags = vector_of(memory, GZ_BOOLEAN, extent);
    for (size_t i = 0; i < COUNT; ++i)
        set_element(memory, GZ_BOOLEAN, i, own_rank() == 0 && i == 0);
    OK(gz_allreduce(&flags, GZ_MAX, NULL));
    CHECK(get_element(memory, GZ_BOOLEAN, 0) == 1 && get_element(memory, GZ_BOOLEAN, 1) == 0);
}

static void test_scales(void) {
    float memory[COUNT];
    const GzTensor tensor = vector_of(memory, GZ_F32, extent);
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "scaled";
    options.prescale = 2;
    options.postscale = 0.25;
    fill(memory, GZ_F32);
    OK(gz_allreduce(&tensor, GZ_SUM, &options));
    for (size_t i = 0; i < COUNT; ++i) CHECK(memory[i] == (float)expected(GZ_SUM, GZ_F32, i) / 2);
}

static void test_adasum(void) {
    float memory[COUNT] = {1, 2, 3, 4, 5};
    const GzTensor tensor = vector_of(memory, GZ_F32, extent);
    OK(gz_allreduce(&tensor, GZ_ADASUM, NULL));
    for (size_t i = 0; i < COUNT; ++i) CHECK(fabsf(memory[i] - (float)(i + 1)) < 1e-5F);
}

void test_groups(void) {
    float floats[COUNT];
    int64_t integers[COUNT];
    GzTensor tensors[] = {vector_of(floats, GZ_F32, extent), vector_of(integers, GZ_I64, extent)};
    GzHandle* handle = NULL;
    test_scales();
    test_adasum();
    for (int async = 0; async < 2; ++async) {
        fill(floats, GZ_F32);
        fill(integers, GZ_I64);
        if (async) {
            OK(gz_grouped_allreduce_async(tensors, 2, GZ_SUM, NULL, &handle));
            OK(gz_handle_wait(handle));
            gz_handle_free(handle);
        } else {
            OK(gz_grouped_allreduce(tensors, 2, GZ_SUM, NULL));
        }
        expect_reduced(floats, GZ_SUM, GZ_F32);
        expect_reduced(integers, GZ_SUM, GZ_I64);
    }
}

void test_broadcasts(void) {
    double memory[COUNT];
    GzHandle* handle = NULL;
    for (int root = 0; root < rank_count(); ++root)
        for (GzDType dtype = GZ_U8; dtype <= GZ_U64; ++dtype) {
            const GzTensor tensor = vector_of(memory, dtype, extent);
            for (size_t i = 0; i < COUNT; ++i)
                set_element(memory, dtype, i, own_rank() == root && i % 2 == 0);
            if (dtype % 2) {
                OK(gz_broadcast(&tensor, root, NULL));
            } else {
                OK(gz_broadcast_async(&tensor, root, NULL, &handle));
                OK(gz_handle_wait(handle));
                gz_handle_free(handle);
            }
            for (size_t i = 0; i < COUNT; ++i)
                CHECK(get_element(memory, dtype, i) == (double)(i % 2 == 0));
        }
    int value = own_rank() == 0 ? 42 : 0;
    const GzTensor scalar = {&value, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    OK(gz_broadcast(&scalar, 0, NULL));
    CHECK(value == 42);
    OK(gz_barrier(NULL));
    OK(gz_barrier_async(NULL, &handle));
    OK(gz_handle_wait(handle));
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
    GzOptions waiting = GZ_OPTIONS_INIT;
    waiting.wait_first_us = 1;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no wait_first_us", gz_send(&out, right, 7, &waiting));
}

void test_joins(void) {
    int last = -1, rank = own_rank();
    int sum = rank + 1;
    GzHandle* handle = NULL;
    const GzTensor tensor = {&sum, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = "what rank 0 still has";
    if (rank == 0) {
        OK(gz_allreduce(&tensor, GZ_SUM, &options));
        CHECK(sum == 1);
    }
    if (rank % 2) {
        OK(gz_join_async(NULL, &handle));
        OK(gz_handle_last_rank(handle, &last));
        gz_handle_free(handle);
    } else {
        OK(gz_join(NULL, &last));
    }
    CHECK(last == 0);
    OK(gz_join(NULL, NULL));
    int greatest = last;
    const GzTensor same = {&greatest, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    OK(gz_allreduce(&same, GZ_MAX, NULL));
    CHECK(greatest == last);
}
